"""Micro-batches that keep the global batch."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.plan import RunPlan, valid_micro_batch_sizes, with_micro_batch_size
from tests.conftest import build_plan


def test_480_sequences_on_four_ranks_split_as_the_divisors_of_120() -> None:
    trainer = replace(build_plan().trainer, tokens_per_step=491_520)
    assert valid_micro_batch_sizes(trainer, 4) == [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 40, 60, 120]


def test_nothing_is_valid_when_the_ranks_do_not_divide(make_plan: Callable[..., RunPlan]) -> None:
    assert valid_micro_batch_sizes(replace(make_plan().trainer, tokens_per_step=491_520), 7) == []


@given(st.integers(1, 3000), st.integers(1, 8))
def test_every_valid_size_keeps_the_global_batch(n_sequences: int, world_size: int) -> None:
    trainer = replace(build_plan().trainer, tokens_per_step=n_sequences * world_size * 1024)
    sizes = valid_micro_batch_sizes(trainer, world_size)
    assert sizes == [size for size in range(1, n_sequences + 1) if n_sequences % size == 0]
    for size in sizes:
        fields = with_micro_batch_size(trainer, size, world_size)
        assert fields["micro_batch_size"] * fields["grad_accum_steps"] * world_size == n_sequences * world_size


def test_a_size_that_does_not_divide_raises() -> None:
    with pytest.raises(ValueError, match="480 sequences"):
        with_micro_batch_size(replace(build_plan().trainer, tokens_per_step=491_520), 7, 4)
