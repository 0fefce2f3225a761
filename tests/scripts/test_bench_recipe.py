"""The arithmetic of the bench: what fraction of the tokens reaches a loss."""

from __future__ import annotations

import math

import pytest

from scripts.bench_recipe import Trial, fraction_needed, told


def trial(n_tokens: int, val_loss: float) -> Trial:
    return Trial(n_tokens=n_tokens, learning_rate=1e-3, val_loss=val_loss, steps_seconds=1.0)


BASE = trial(1000, 2.0)


def test_fraction_is_interpolated_in_the_logarithm_of_the_tokens():
    found = fraction_needed(BASE, [trial(250, 2.1), trial(500, 1.9)])
    assert found == pytest.approx(math.sqrt(0.25 * 0.5))  # half of the way down
    assert told(BASE, [trial(250, 2.1), trial(500, 1.9)]) == "35%"


def test_fraction_is_a_bound_when_the_shortest_run_is_better_already():
    assert fraction_needed(BASE, [trial(250, 1.9)]) == 0.25
    assert told(BASE, [trial(250, 1.9)]) == "at most 25%"


def test_fraction_is_unknown_when_no_run_is_good_enough():
    assert fraction_needed(BASE, [trial(250, 2.2), trial(750, 2.1)]) is None
    assert told(BASE, [trial(750, 2.1)]) == "more than all tried"
