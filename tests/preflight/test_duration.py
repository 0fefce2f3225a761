"""Wall time: every term worked by hand, and short jobs that steps alone would get wrong."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.choices import DataKind, TrackingBackend
from preflight import duration
from preflight.duration import WallEstimate, estimate_wall
from preflight.plan import Calibration, Factor, RunPlan
from preflight.step_time.step import estimate_step_time
from tests.conftest import A100_80GB, RTX_4090, build_plan

CHECKPOINT_BYTES = 12 * 124_000_000


def wall_of(plan: RunPlan) -> WallEstimate:
    return estimate_wall(plan, estimate_step_time(plan), CHECKPOINT_BYTES)


def with_factors(plan: RunPlan, **factors: Factor) -> RunPlan:
    return replace(plan, calibration=Calibration(n_runs=1, factors=factors, ledger_sha256=""))


def measured(value: float) -> Factor:
    return Factor(value=value, low=0.9 * value, high=1.1 * value, n_runs=3, scope="same machine")


@given(
    n_steps=st.integers(1, 10_000),
    n_gpus=st.sampled_from([1, 2, 8]),
    card=st.sampled_from(["4090", "cpu"]),
    is_compiled=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_terms_sum_to_mid(n_steps: int, n_gpus: int, card: str, is_compiled: bool) -> None:
    wall = wall_of(build_plan(n_steps=n_steps, n_gpus=n_gpus, card=card, compile=is_compiled))
    assert wall.seconds is not None
    assert min(wall.terms_seconds.values()) >= 0
    assert sum(wall.terms_seconds.values()) == pytest.approx(wall.seconds.mid)


@given(fewer=st.integers(1, 5000), more=st.integers(1, 5000))
@settings(max_examples=30, deadline=None)
def test_more_steps_never_take_less(fewer: int, more: int) -> None:
    intervals = {"eval_interval": 100, "checkpoint_interval": 500}
    short, long = (wall_of(build_plan(n_steps=n, trainer=intervals)).seconds for n in (fewer, fewer + more))
    assert short is not None
    assert long is not None
    assert short.mid < long.mid


def test_steps_are_steps_times_their_mean() -> None:
    plan = build_plan(n_steps=500)
    step = estimate_step_time(plan).seconds
    assert step is not None
    assert wall_of(plan).terms_seconds["steps"] == pytest.approx(500 * step.mid * duration.SLOW_STEPS_FACTOR)


@pytest.mark.parametrize(
    ("n_steps", "interval", "n"), [(100, 0, 1), (100, 100, 1), (100, 30, 4), (7, 10, 1), (90, 30, 3)]
)
def test_events_happen_every_interval_and_at_the_end(n_steps: int, interval: int, n: int) -> None:
    assert duration.n_events(n_steps, interval) == n


def test_evaluation_is_a_third_of_a_training_pass_over_its_sequences() -> None:
    """24 sequences with a micro-batch of 12 on one rank: two forward passes, at 3 of the 30 steps and the last."""
    plan = build_plan(n_steps=30, grad_accum_steps=1, trainer={"eval_interval": 10, "n_eval_sequences": 24})
    step = estimate_step_time(plan)
    assert step.seconds is not None
    a_pass = step.seconds.mid - step.terms_seconds["optimizer"]
    assert wall_of(plan).terms_seconds["evaluations"] == pytest.approx(3 * 2 * a_pass / 3)


def test_checkpoints_are_written_at_the_speed_of_the_disk() -> None:
    plan = build_plan(n_steps=1000, trainer={"checkpoint_interval": 400})
    plan = replace(plan, hw=replace(plan.hw, disk_bytes_per_second=2e9))
    one = duration.CHECKPOINT_FIXED_SECONDS + CHECKPOINT_BYTES / 2e9 + CHECKPOINT_BYTES / 1.5e9
    assert wall_of(plan).terms_seconds["checkpoints"] == pytest.approx(3 * one)


def test_data_is_prepared_in_the_launch_only_when_it_is_small_and_missing() -> None:
    plan = build_plan()
    missing = replace(plan.data, prepared=False, n_train_tokens=None)
    assert wall_of(plan).terms_seconds["data"] == 0
    assert wall_of(replace(plan, data=missing)).terms_seconds["data"] > 0
    web = replace(missing, kind=DataKind.openwebtext)
    assert wall_of(replace(plan, data=web)).terms_seconds["data"] == 0


def test_compiling_124m_takes_as_long_as_others_saw() -> None:
    """nanoGPT's first iteration, compiled: 33-95 s."""
    wall = wall_of(build_plan(card=A100_80GB, compile=True))
    assert 33 <= wall.terms_seconds["compile"] <= 95
    assert wall_of(build_plan(card=A100_80GB)).terms_seconds["compile"] < 10


def test_ranks_nodes_and_tracking_lengthen_the_start() -> None:
    alone = wall_of(build_plan()).terms_seconds["startup"]
    many = wall_of(build_plan(n_gpus=8)).terms_seconds["startup"]
    nodes = wall_of(build_plan(n_gpus=8, n_nodes=2)).terms_seconds["startup"]
    plan = build_plan()
    tracked = replace(plan, tracking=replace(plan.tracking, backend=TrackingBackend.wandb))
    assert alone < many < nodes
    assert alone < wall_of(tracked).terms_seconds["startup"]


def test_a_short_job_is_mostly_not_steps() -> None:
    wall = wall_of(build_plan(card=A100_80GB, n_steps=20, compile=True))
    assert wall.seconds is not None
    assert wall.terms_seconds["steps"] < 0.2 * wall.seconds.mid


def test_unknown_step_time_gives_unknown_wall_time() -> None:
    wall = wall_of(build_plan(card=replace(RTX_4090, peak_flops_per_second={})))
    assert wall.seconds is None
    assert wall.terms_seconds == {}


def test_measured_start_up_and_compilation_replace_the_priors() -> None:
    plan = build_plan(compile=True)
    wall = wall_of(with_factors(plan, startup_seconds=measured(4.0), compile_seconds=measured(21.0)))
    assert wall.terms_seconds["startup"] == 4.0
    assert wall.terms_seconds["compile"] == 21.0


def test_measured_ratios_scale_evaluations_and_checkpoints() -> None:
    plan = build_plan()
    raw = wall_of(plan).terms_seconds
    scaled = wall_of(
        with_factors(plan, evaluation_seconds=measured(2.0), checkpoint_seconds=measured(0.5))
    ).terms_seconds
    assert scaled["evaluations"] == pytest.approx(2 * raw["evaluations"])
    assert scaled["checkpoints"] == pytest.approx(raw["checkpoints"] / 2)


def test_calibrated_band_is_narrower() -> None:
    plan = build_plan(card="cpu", model="tiny", n_steps=100)
    factors = {name: measured(1.0) for name in ("step_seconds", "evaluation_seconds", "checkpoint_seconds")}
    wide, narrow = wall_of(plan).seconds, wall_of(with_factors(plan, **factors)).seconds
    assert wide is not None
    assert narrow is not None
    assert narrow.high - narrow.low < wide.high - wide.low


def test_the_end_takes_time_only_where_a_tracker_waits() -> None:
    plan = build_plan()
    tracked = replace(plan, tracking=replace(plan.tracking, backend=TrackingBackend.wandb))
    assert wall_of(plan).terms_seconds["shutdown"] < 0.1
    assert wall_of(tracked).terms_seconds["shutdown"] > 0.5
    assert wall_of(with_factors(tracked, shutdown_seconds=measured(1.2))).terms_seconds["shutdown"] == 1.2
