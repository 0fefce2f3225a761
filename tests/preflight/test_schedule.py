"""Intervals from the number of steps alone."""

from __future__ import annotations

import pytest

from preflight.schedule import (
    at_most_the_data,
    default_checkpoint_interval,
    default_eval_interval,
    default_n_eval_sequences,
)


@pytest.mark.parametrize(("n_steps", "expected"), [(1, 4), (40, 4), (41, 5), (732, 74), (20_345, 1000)])
def test_default_eval_interval_is_ten_a_run_between_4_and_1000_steps(n_steps, expected):
    assert default_eval_interval(n_steps) == expected


@pytest.mark.parametrize(("n_steps", "expected"), [(1, 1), (6, 2), (732, 147), (20_345, 1000)])
def test_default_checkpoint_interval_is_five_a_run(n_steps, expected):
    assert default_checkpoint_interval(n_steps) == expected


def test_default_n_eval_sequences_are_whole_steps_of_a_tenth_of_the_tokens():
    # 732 steps, 9 evaluations: 8.1 steps' worth each, 8 whole ones of 32 sequences
    assert default_n_eval_sequences(732, 74, 4096, 128) == 8 * 32
    assert default_n_eval_sequences(20_345, 1000, 491_520, 1024) == 2 * 480  # bounded by 2^20 tokens


def test_at_most_the_data_keeps_one_a_rank():
    assert at_most_the_data(480, None, 1024, 4) == 480
    assert at_most_the_data(480, 10_241, 1024, 4) == 10
    assert at_most_the_data(480, 100, 1024, 4) == 4
