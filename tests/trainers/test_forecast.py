"""Does the band hold the truth, does it narrow, and do outliers leave it alone? On simulated runs with known ends."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import exp
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.band import Band
from trainers.forecast import MAX_BLOCKS, Pace, Spending, Work, added, event_seconds, flat_forecast, forecast

CPU_NOISE, CARD_NOISE = 0.1, 0.03
NOTHING_ELSE = {
    "beside_seconds": 0.0, "n_evaluations": 0, "evaluation_seconds": (), "expected_evaluation_seconds": 0.0,
    "n_checkpoints": 0, "checkpoint_seconds": (), "expected_checkpoint_seconds": 0.0, "end_seconds": 0.0,
}  # fmt: skip
FREE = Spending(wall_seconds=0.0, cost_usd=None, usd_per_hour=None, energy_kwh=None, watts=None)


def simulated_steps(kind: str, n: int, rng: random.Random, noise: float) -> Iterator[float]:
    """Quiet; with stalls of three to ten steps in every fifty; or with a load that comes and goes over fifty steps."""
    load = 0.0
    for _ in range(n):
        seconds = rng.lognormvariate(0.0, noise / 2)
        if kind == "stalls" and rng.random() < 0.02:
            seconds *= rng.uniform(3, 10)
        if kind == "load":
            load = 0.98 * load + rng.gauss(0.0, noise / 5)
            seconds *= exp(load)
        yield seconds


def pace_of(steps: list[float]) -> Pace:
    pace = Pace()
    for seconds in steps:
        pace.add(seconds)
    return pace


@pytest.mark.parametrize("noise", [CPU_NOISE, CARD_NOISE])
def test_forecast_holds_the_truth_in_three_of_four_simulated_runs(noise: float):
    held = {}
    for kind in ("quiet", "stalls", "load"):
        for n in (60, 300, 1500):
            for run in range(40):
                steps = list(simulated_steps(kind, n, random.Random(run), noise))
                for part in (0.1, 0.3, 0.6):
                    n_done = int(part * n)
                    band = pace_of(steps[:n_done]).to_come(n - n_done, noise)
                    held[kind, n, run, part] = band.low <= fmean(steps[n_done:]) <= band.high
    assert fmean(held.values()) >= 0.75
    if noise == CPU_NOISE:
        for kind in ("quiet", "stalls", "load"):
            assert fmean(hit for key, hit in held.items() if key[0] == kind) >= 0.75, kind


@pytest.mark.parametrize("kind", ["quiet", "stalls", "load"])
def test_forecast_narrows_on_average(kind: str):
    widths = []
    for part in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8):
        of_runs = []
        for run in range(30):
            steps = list(simulated_steps(kind, 400, random.Random(run), CPU_NOISE))
            n_done = int(part * 400)
            band = pace_of(steps[:n_done]).to_come(400 - n_done, CPU_NOISE).scaled(400 - n_done)
            of_runs.append(band.high - band.low)
        widths.append(fmean(of_runs))
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < widths[0] / 5


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(8, 400),
    at=st.floats(0, 1, exclude_max=True),
    length=st.floats(2.0, 1e5),
    seed=st.integers(0, 99),
)
def test_one_outlier_moves_nothing(n: int, at: float, length: float, seed: int):
    steps = list(simulated_steps("quiet", n, random.Random(seed), CARD_NOISE))
    with_outlier = list(steps)
    with_outlier[int(at * n)] = length
    before = pace_of(steps).to_come(1000, CARD_NOISE)
    after = pace_of(with_outlier).to_come(1000, CARD_NOISE)
    assert after.mid == pytest.approx(before.mid, rel=0.02)
    assert after.high == pytest.approx(before.high, rel=0.06)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=300), st.integers(0, 10**6))
def test_pace_is_ordered_and_positive_whatever_was_measured(steps: list[float], n_left: int):
    band = pace_of(steps).to_come(n_left, CPU_NOISE)
    assert 0 < band.low <= band.mid <= band.high
    assert band.mid <= 2 * max(steps)


def test_pace_sees_stalls_that_come_back():
    steps = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 9.0] * 10  # one second is 16 / 8 = 2 on average
    assert pace_of(steps).to_come(1000, CPU_NOISE).mid == pytest.approx(1.9)  # nine of the ten are expected again


def test_pace_keeps_few_numbers_of_many_steps():
    pace = pace_of([0.5] * 100_000)
    assert len(pace.means) < MAX_BLOCKS
    assert pace.to_come(10, CPU_NOISE).mid == pytest.approx(0.5)


def test_event_seconds_starts_at_what_is_expected_and_then_believes_what_was_seen():
    assert event_seconds(3, (), 2.0) == Band(low=3.0, mid=6.0, high=12.0, source="expected")
    assert event_seconds(3, (5.0, 5.0, 50.0), 2.0).mid == 15.0
    assert event_seconds(0, (5.0,), 2.0).high == 0.0


def test_added_parts_err_independently():
    parts = [Band(low=7.0, mid=10.0, high=14.0, source=""), Band(low=16.0, mid=20.0, high=23.0, source="")]
    total = added(parts)
    assert (total.low, total.mid, total.high) == (25.0, 30.0, 35.0)  # 3-4-5


def test_forecast_adds_up_what_is_left_and_what_was_spent():
    work = Work(**NOTHING_ELSE | {
        "n_steps": 100, "beside_seconds": 0.5, "n_evaluations": 2, "evaluation_seconds": (10.0,), "n_checkpoints": 1,
        "checkpoint_seconds": (5.0,), "end_seconds": 1.0,
    })  # fmt: skip
    spending = Spending(
        wall_seconds=824.0, cost_usd=1.0, usd_per_hour=3.6, energy_kwh=2.0,
        watts=Band(low=900.0, mid=1000.0, high=1100.0, source="measured"),
    )  # fmt: skip
    found = forecast(pace_of([1.0] * 16), work, spending, CARD_NOISE)
    assert found.remaining_seconds.mid == pytest.approx(150 + 20 + 5 + 1)
    assert found.wall_seconds.mid == pytest.approx(1000.0)
    assert found.cost_usd is not None
    assert found.cost_usd.mid == pytest.approx(1.0 + 0.176)  # a thousandth of a dollar a second
    assert found.energy_kwh is not None
    assert found.energy_kwh.mid == pytest.approx(2.0 + 176 / 3600)
    assert found.energy_kwh.mid - found.energy_kwh.low > 0.1 * 176 / 3600  # watts and time are both unsure


def test_flat_forecast_leaves_out_what_is_unknown():
    work = Work(**NOTHING_ELSE | {"n_steps": 10})
    flat = flat_forecast(forecast(pace_of([1.0] * 8), work, FREE, CARD_NOISE), 1_000.0)
    assert flat["forecast/end_unix_seconds"] == pytest.approx(1_010.0)
    assert {name.removesuffix("_low").removesuffix("_high") for name in flat} == {
        "forecast/step_seconds", "forecast/remaining_seconds", "forecast/wall_seconds", "forecast/end_unix_seconds",
    }  # fmt: skip
