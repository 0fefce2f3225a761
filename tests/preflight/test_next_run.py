"""The calibrated band is that of the next run: honest after one, narrower with each that agrees, never too narrow."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from math import exp, log

import pytest
from simulated_machine import SimulatedMachine, cpu_plan

from preflight.calibration.calibrate import STEP_SPREAD, STEP_SPREAD_ON_CARDS, calibrate
from preflight.calibration.evidence import Observation, Spread, factor_from
from preflight.calibration.next_run import MIN_NOISE, P90_SIGMAS, noise_of, t_p90
from preflight.memory.peak import estimate_memory
from preflight.plan import Factor, RunPlan

MakePlan = Callable[..., RunPlan]
SPREADS = {"processor": STEP_SPREAD, "card": STEP_SPREAD_ON_CARDS}
RUN, STEP = 0, 1
# Standard deviations in units of the noise that is assumed: of a run, and of the machine's change from run to run.
MACHINES = {"steady": (0.8, 0.0), "as assumed": (1.0, 0.0), "noisy": (1.6, 0.0), "drifting": (0.6, 1.0)}


def factor_of(log_ratios: list[float], spread: Spread) -> Factor:
    factor = factor_from(
        [Observation(group="a", likeness=1.0, log_ratio=value, variance=0.0) for value in log_ratios], spread, "machine"
    )
    assert factor is not None
    return factor


def history(machine: str, n_runs: int, noise: float, seed: int) -> list[float]:
    """Logarithms of measured / formula."""
    chance = random.Random(seed)
    level, found = chance.gauss(0, 0.5), []
    for _ in range(n_runs):
        level += chance.gauss(0, MACHINES[machine][STEP] * noise)
        found.append(level + chance.gauss(0, MACHINES[machine][RUN] * noise))
    return found


@pytest.mark.parametrize("kind", SPREADS)
@pytest.mark.parametrize("machine", MACHINES)
def test_the_band_covers_about_eight_in_ten_next_runs(machine: str, kind: str) -> None:
    """Histories of one to ten runs, each with the run that came next."""
    covered = []
    for n_runs in range(1, 11):
        for seed in range(60):
            *before, following = history(machine, n_runs + 1, SPREADS[kind].noise, 100 * seed + n_runs)
            factor = factor_of(before, SPREADS[kind])
            covered.append(factor.low <= exp(following) <= factor.high)
    assert 0.75 <= statistics.mean(covered) <= 0.92


def test_a_single_run_leaves_what_runs_of_such_a_machine_differ_by() -> None:
    cpu, card = (factor_of([log(1.5)], spread) for spread in SPREADS.values())
    assert (cpu.low / cpu.value, cpu.high / cpu.value) == pytest.approx((0.83, 1.28), abs=0.02)
    assert (card.low / card.value, card.high / card.value) == pytest.approx((0.93, 1.10), abs=0.01)


def test_runs_that_agree_narrow_the_band_and_runs_that_do_not_keep_it_wide() -> None:
    agreeing = [factor_of([0.02 * (i % 2) for i in range(n)], STEP_SPREAD) for n in (1, 2, 4, 8)]
    widths = [factor.high / factor.low for factor in agreeing]
    assert widths == sorted(widths, reverse=True)
    scattered = factor_of([0.3 * (i % 2) for i in range(8)], STEP_SPREAD)
    assert scattered.high / scattered.low > widths[0]


def test_the_band_has_a_floor() -> None:
    """1.28 x 0.4 x 0.08: the next run may be 5 % off, whatever fifty equal ones say."""
    factor = factor_of([0.0] * 50, STEP_SPREAD)
    half_width = log(factor.high / factor.low) / 2
    assert half_width >= P90_SIGMAS * MIN_NOISE * STEP_SPREAD.noise
    assert half_width == pytest.approx(0.05, abs=0.015)


def test_a_drift_counts_as_much_as_noise() -> None:
    """Ten runs, each 5 % slower than the one before: neighbours differ little, forecasts are behind all the time."""
    drifting = factor_of([0.05 * i for i in range(10)], STEP_SPREAD)
    assert drifting.low < exp(0.5) < drifting.high


def test_forecasts_that_miss_are_what_noise_is_made_of() -> None:
    """Two runs 0.3 apart: one error of 0.3 / sqrt(2), beside an assumed 0.1 that counts twice."""
    noise = noise_of([[0.0, 0.3]], assumed=0.1, sigma=0.05)
    assert noise.degrees == 3
    assert noise.sigma**2 == pytest.approx((2 * 0.01 + 0.045) / 3)


@pytest.mark.parametrize(("degrees", "p90"), [(2, 1.886), (3, 1.638), (5, 1.476), (10, 1.372), (30, 1.310)])
def test_p90_of_students_t(degrees: float, p90: float) -> None:
    assert t_p90(degrees) == pytest.approx(p90, rel=0.021)


@pytest.mark.parametrize(("card", "edge"), [("cpu", 0.08), ("4090", 0.03)])
def test_memory_after_one_run_says_what_the_next_may_need(make_plan: MakePlan, card: str, edge: float) -> None:
    plan = cpu_plan(make_plan) if card == "cpu" else make_plan(card=card)
    record = SimulatedMachine().run(plan)
    if card != "cpu":
        record["actual"]["actual/peak_reserved_bytes"] = SimulatedMachine().peak_bytes(plan)
    memory = estimate_memory(replace(plan, calibration=calibrate(plan, [record], None)))
    peak = memory.device if card == "cpu" else memory.reserved
    assert peak.high / peak.mid - 1 == pytest.approx(edge, rel=0.2)
    assert 1 - peak.low / peak.mid == pytest.approx(edge, rel=0.2)


def test_memory_bands_narrow_with_runs_that_agree(make_plan: MakePlan) -> None:
    plan, machine = cpu_plan(make_plan), SimulatedMachine(run_sigma=0.02)  # peaks vary by a quarter of it
    widths = []
    for n_runs in (1, 3, 8):
        records = [machine.run(plan) for _ in range(n_runs)]
        band = estimate_memory(replace(plan, calibration=calibrate(plan, records, None))).device
        widths.append((band.high - band.low) / band.mid)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] > 0.02
