"""Wall time: every term worked by hand, and short jobs that steps alone would get wrong."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.choices import DataKind, Tokenizer, TrackingBackend
from preflight import duration
from preflight.duration import WallEstimate, estimate_wall
from preflight.hw_plan import Interruptions, Measured
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
    assert wall_of(plan).terms_seconds["steps"] == pytest.approx(500 * step.mid)


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


def test_steps_wait_for_the_copy_alone_where_a_thread_writes() -> None:
    plan = build_plan(n_steps=1000, trainer={"checkpoint_interval": 400, "save_beside": True})
    one = duration.CHECKPOINT_FIXED_SECONDS + CHECKPOINT_BYTES / 500e6 + CHECKPOINT_BYTES / 1.5e9
    copy = CHECKPOINT_BYTES / duration.COPY_BYTES_PER_SECOND
    assert one < 400 * estimate_step_time(plan).seconds.mid  # each is written before the next is due
    assert wall_of(plan).terms_seconds["checkpoints"] == pytest.approx(2 * copy + one)  # the last one is waited for
    every_step = replace(plan, trainer=replace(plan.trainer, checkpoint_interval=1))
    wait = one - estimate_step_time(plan).seconds.mid
    assert wall_of(every_step).terms_seconds["checkpoints"] == pytest.approx(999 * (copy + wait) + one)
    no_room = replace(every_step, hw=replace(plan.hw, host_memory_bytes=CHECKPOINT_BYTES))
    assert wall_of(no_room).terms_seconds["checkpoints"] == pytest.approx(1000 * one)


def test_data_is_prepared_in_the_launch_only_when_it_is_small_and_missing() -> None:
    plan = build_plan()
    missing = replace(plan.data, prepared=False, n_train_tokens=None)
    assert wall_of(plan).terms_seconds["data"] == 0
    assert wall_of(replace(plan, data=missing)).terms_seconds["data"] > 0
    web = replace(missing, kind=DataKind.openwebtext)
    assert wall_of(replace(plan, data=web)).terms_seconds["data"] == 0


def test_data_take_as_long_as_their_bytes() -> None:
    """10 MB: 0.1 s as bytes, 2 s through a tokenizer; a short text next to nothing."""

    def seconds(n_source_bytes: int, tokenizer: Tokenizer) -> float:
        plan = build_plan(model="tiny", card="cpu")
        text = replace(plan.data, kind=DataKind.text, prepared=False, n_source_bytes=n_source_bytes)
        plan = replace(plan, data=text, model=replace(plan.model, tokenizer=tokenizer))
        return wall_of(plan).terms_seconds["data"]

    assert seconds(10_000_000, Tokenizer.byte) == pytest.approx(0.13)
    assert seconds(10_000_000, Tokenizer.gpt2) == pytest.approx(2.03)
    assert seconds(1_000, Tokenizer.byte) < 0.04


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


def on_spot(plan: RunPlan, low: float, mid: float, high: float) -> RunPlan:
    """Taken away that many times an hour and node."""
    rates = Interruptions(low_per_hour=low, mid_per_hour=mid, high_per_hour=high, source="test", as_of="2026-11-30")
    return replace(plan, hw=replace(plan.hw, offer=replace(plan.hw.offer, interruptions=rates)))


def test_restarts_lengthen_a_spot_run_by_the_work_that_is_lost() -> None:
    """T / (1 - r L): r an hour, L half a checkpoint interval, start-up and first step."""
    plan = build_plan(n_steps=10_000, trainer={"checkpoint_interval": 1000})
    steady, spot = wall_of(plan), wall_of(on_spot(plan, 0.0, 0.1, 0.2))
    step = estimate_step_time(plan).seconds
    assert step is not None
    assert steady.seconds is not None
    assert spot.seconds is not None
    lost = 500 * step.mid + steady.terms_seconds["startup"] + steady.terms_seconds["compile"]
    assert spot.seconds.mid == pytest.approx(steady.seconds.mid / (1 - 0.1 / 3600 * lost))
    assert spot.seconds.low == pytest.approx(steady.seconds.low)
    assert spot.seconds.high == pytest.approx(steady.seconds.high / (1 - 0.2 / 3600 * lost))
    assert sum(spot.terms_seconds.values()) == pytest.approx(spot.seconds.mid)
    assert "restarts" not in steady.terms_seconds


def test_any_node_that_is_taken_away_stops_all_and_checkpoints_bound_the_loss() -> None:
    def restarts(n_nodes: int, interval: int) -> float:
        plan = build_plan(n_steps=10_000, n_nodes=n_nodes, n_gpus=8, trainer={"checkpoint_interval": interval})
        wall = wall_of(on_spot(plan, 0.01, 0.05, 0.1))
        return wall.terms_seconds["restarts"] / sum(wall.terms_seconds.values())

    assert restarts(4, 1000) > 3 * restarts(1, 1000)
    assert restarts(1, 100) < restarts(1, 2000)


def test_machine_that_never_stays_still_has_a_finite_bill() -> None:
    wall = wall_of(on_spot(build_plan(n_steps=10_000), 1.0, 100.0, 1e6)).seconds
    assert wall is not None
    assert wall.low <= wall.mid <= wall.high < float("inf")


def test_tokens_are_read_once_and_cards_compute_beside_it() -> None:
    """20M tokens of 2 bytes at 1 MB/s: 40 s that a CPU waits; a card's run of many steps hides them."""
    slow = Measured(
        as_of="2026-11-30", matmul_flops_per_second={}, bandwidth_bytes_per_second=None, pass_seconds=None,
        layer_seconds=None, disk_write_bytes_per_second=None, disk_read_bytes_per_second=1e6,
        bus_bytes_per_second=None, bus_latency_seconds=None,
    )  # fmt: skip

    def wait(plan: RunPlan) -> float:
        return wall_of(replace(plan, hw=replace(plan.hw, measured=slow))).terms_seconds["data_wait"]

    assert wait(build_plan(model="tiny", card="cpu", n_steps=10_000)) == pytest.approx(40.0)
    assert wait(build_plan(model="tiny", card="cpu", n_steps=100)) == pytest.approx(100 * 12 * 1024 * 2 / 1e6)
    assert wait(build_plan(n_steps=10_000)) == 0
    fresh = build_plan(model="tiny", card="cpu", n_steps=10_000)
    assert wait(replace(fresh, data=replace(fresh.data, prepared=False))) == 0  # just written, still in the cache
