"""What dropout adds to a step: traffic and random numbers, by hand-worked cases."""

from dataclasses import replace

import pytest

from conf.choices import Attention
from preflight.duration import forward_seconds
from preflight.hw_plan import Card
from preflight.plan import Checkpointing, RunPlan
from preflight.step_time.step import estimate_step_time
from tests.conftest import A100_80GB, CPU, GPT2_124M, build_plan

N_VALUES = 8 * 1024 * 768 * (2 * 12 + 1)  # of the residual stream, and the embedding's
N_SCORES = 8 * 1024 * 12 * 12 * 1024
A100_BYTES_PER_SECOND, CPU_BYTES_PER_SECOND = 0.85 * 2039e9, 0.85 * (CPU.bandwidth_bytes_per_second or 0)
ATTENTION_ON_A100 = (1 + 400 / 1024) * 3 * 4.5 * N_SCORES / 2 / 19.5e12  # 4.5 operations a score, three passes, blocks


def dropping(card: Card, dropout: float = 0.1, *, compiled: bool = False, attention: str = "sdpa") -> RunPlan:
    return build_plan(
        model=replace(GPT2_124M, dropout=dropout),
        card=card,
        micro_batch_size=8,
        compile=compiled,
        trainer={"attention": Attention(attention)},
    )


def dropout_seconds(plan: RunPlan) -> float:
    return estimate_step_time(plan).terms_seconds["dropout"]


def test_nothing_is_dropped_for_nothing() -> None:
    assert dropout_seconds(dropping(A100_80GB, 0.0)) == 0.0


def test_eager_dropout_moves_ten_bytes_a_value() -> None:
    expected = ATTENTION_ON_A100 + 10 * N_VALUES / A100_BYTES_PER_SECOND
    assert dropout_seconds(dropping(A100_80GB)) == pytest.approx(expected)


def test_compiled_dropout_draws_numbers_inside_other_kernels() -> None:
    expected = ATTENTION_ON_A100 + N_VALUES * (2 / A100_BYTES_PER_SECOND + 200 / 19.5e12)
    assert dropout_seconds(dropping(A100_80GB, compiled=True)) == pytest.approx(expected)


def test_processors_draw_numbers_one_after_the_other() -> None:
    computed = (256 * 256 + 256 * 512 + 256 * 768 + 256 * 1024) / 1024**2  # four blocks of queries
    scores = N_SCORES * computed * (23 / CPU_BYTES_PER_SECOND + 7.5e-9)
    expected = scores + N_VALUES * (10 / CPU_BYTES_PER_SECOND + 7.5e-9)
    assert dropout_seconds(dropping(CPU, attention="eager")) == pytest.approx(expected)
    assert dropout_seconds(dropping(CPU, attention="eager", compiled=True)) == pytest.approx(expected)


def test_fused_kernel_of_processors_cannot_drop() -> None:
    without, dropped = (estimate_step_time(dropping(CPU, dropout)).terms_seconds for dropout in (0.0, 0.1))
    assert dropped["attention"] > without["attention"]


def test_evaluations_drop_nothing() -> None:
    without, dropped = (dropping(CPU, dropout, attention="eager") for dropout in (0.0, 0.5))
    assert forward_seconds(dropped, estimate_step_time(dropped)) == pytest.approx(
        forward_seconds(without, estimate_step_time(without))
    )


def test_recomputing_draws_the_numbers_again() -> None:
    plans = [dropping(A100_80GB, dropout) for dropout in (0.0, 0.1)]
    again = [replace(one, trainer=replace(one.trainer, activation_checkpointing=Checkpointing.full)) for one in plans]
    without, dropped = (estimate_step_time(one).terms_seconds for one in again)
    assert dropped["recompute"] - without["recompute"] == pytest.approx(dropped["dropout"] / 3)
