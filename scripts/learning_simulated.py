"""After 1, 3 and 10 runs on a machine whose truth is known: how far off is the next bill, does its band hold?

Used by `scripts/bench_learning.py`. A machine differs from the formulas by a pace of its own, plans differ by what is
peculiar to them, runs by noise. Histories mix plans as people do: some are run again, some are new.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from preflight.calibration.calibrate import calibrate
from preflight.estimate import Estimate, estimate
from preflight.hw_plan import CardKind
from preflight.plan import NO_CALIBRATION, RunPlan
from preflight.units import MIB
from scripts.simulated_machine import SimulatedMachine

AFTER = (0, 1, 3, 10)  # runs
AGAIN = 0.5  # of the runs are of a plan that ran before
LOWEST, HIGHEST = 0.75, 0.90  # what the 80 % band may cover
WORSE_THAN_PRIOR = 1.10
PLAY = 1.03  # what chance may do to a mean of some hundred errors
PLAN_SIGMA = 0.10
TERMS_SIGMA = 0.2  # start-up, compilation, checkpoints: caches and disks
MEMORY_SIGMA = 0.04  # between plans, of the peak: measured over ten plans on a processor
BAD = (1.5, 4.0)  # a bad run takes that many times as long
QUANTITIES = ("wall_seconds", "peak_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A kind of machine. Sigmas are those of logarithms."""

    pace: float = 1.0  # median over machines
    pace_sigma: float = 0.5
    run_sigma: float  # of a processor; a card's runs differ a third as much
    drift_sigma: float = 0.0

    def machine(self, seed: int, kind: CardKind) -> SimulatedMachine:
        """One of them."""
        chance, scale = random.Random(f"machine {seed}"), 1.0 if kind is CardKind.cpu else 1 / 3
        return SimulatedMachine(
            seed=seed,
            pace=self.pace * math.exp(chance.gauss(0, self.pace_sigma)),
            plan_sigma=PLAN_SIGMA,
            memory_sigma=MEMORY_SIGMA,
            run_sigma=self.run_sigma * scale,
            drift_sigma=self.drift_sigma * scale,
            tokens_factor=math.exp(chance.gauss(0, 0.15)),
            base_bytes=chance.randint(300, 450) * MIB,
            startup_seconds=chance.uniform(3, 12),
            evaluation_factor=math.exp(chance.gauss(0, 0.3)),
            terms_sigma=TERMS_SIGMA,
            checkpoint_factor=math.exp(chance.gauss(0, 0.5)),
        )


SCENARIOS = {
    "steady": Scenario(run_sigma=0.04),
    "slow": Scenario(pace=3.0, pace_sigma=0.2, run_sigma=0.06),
    "noisy": Scenario(run_sigma=0.15),
    "drifting": Scenario(run_sigma=0.04, drift_sigma=0.06),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """One quantity of one bill beside the run that followed."""

    scenario: str
    kind: str
    quantity: str
    n_runs: int  # before it
    error: float  # |bill / run - 1|
    is_covered: bool


def simulate(plans: Sequence[RunPlan], n_histories: int) -> list[Bill]:
    """Equally many of every scenario; plans of one card make a history."""
    kinds = sorted({plan.hw.card.kind for plan in plans}, key=lambda kind: kind.name)
    found: list[Bill] = []
    for i in range(n_histories):
        name, scenario = list(SCENARIOS.items())[i % len(SCENARIOS)]
        kind = kinds[i // len(SCENARIOS) % len(kinds)]
        mine = [plan for plan in plans if plan.hw.card.kind is kind]
        found += _history(name, scenario.machine(i, kind), mine, i)
    return found


def _history(name: str, machine: SimulatedMachine, plans: Sequence[RunPlan], seed: int) -> Iterator[Bill]:
    chance = random.Random(f"plans {seed}")
    fresh, known = list(plans), list[RunPlan]()
    chance.shuffle(fresh)
    records: list[dict[str, Any]] = []
    while len(records) <= AFTER[-1]:
        plan = chance.choice(known) if known and (chance.random() < AGAIN or not fresh) else fresh.pop()
        known.append(plan)
        record = machine.run(plan)
        if len(records) in AFTER:
            yield from _bills(name, plan, records, record)
        records.append(record)


def _bills(name: str, plan: RunPlan, records: Sequence[dict[str, Any]], record: dict[str, Any]) -> Iterator[Bill]:
    billed = estimate(replace(plan, calibration=calibrate(plan, records, None)))
    for quantity, (low, mid, high) in _bands(plan, billed).items():
        actual = _actual(plan, quantity, record)
        yield Bill(scenario=name, kind=plan.hw.card.kind.name, quantity=quantity, n_runs=len(records),
                   error=abs(mid / actual - 1), is_covered=low <= actual <= high)  # fmt: skip


def _bands(plan: RunPlan, billed: Estimate) -> dict[str, tuple[float, float, float]]:
    wall = billed.wall.seconds
    assert wall is not None
    peak = billed.memory.device if plan.hw.card.kind is CardKind.cpu else billed.memory.reserved
    return {"wall_seconds": (wall.low, wall.mid, wall.high), "peak_bytes": (peak.low, peak.mid, peak.high)}


def _actual(plan: RunPlan, quantity: str, record: dict[str, Any]) -> float:
    leaf = "peak_device_bytes" if plan.hw.card.kind is CardKind.cpu else "peak_reserved_bytes"
    return float(record["actual"][f"actual/{leaf if quantity == 'peak_bytes' else quantity}"])


def table(bills: Sequence[Bill]) -> list[str]:
    """Mean error and coverage by scenario and number of runs."""
    head = "".join(f"{f'after {n}':>18}" for n in AFTER)
    lines = [f"{'mean error (covered)':<32}{head}"]
    groups = sorted({(bill.quantity, bill.kind, bill.scenario) for bill in bills}, reverse=True)
    for quantity, kind, scenario in groups:
        cells = []
        for n in AFTER:
            these = [b for b in bills if (b.quantity, b.kind, b.scenario, b.n_runs) == (quantity, kind, scenario, n)]
            cells.append(f"{statistics.mean(b.error for b in these):6.1%} ({coverage(these):4.0%})")
        lines.append(f"{f'{quantity} {kind} {scenario}':<32}" + "".join(f"{cell:>18}" for cell in cells))
    return lines


def coverage(bills: Sequence[Bill]) -> float:
    """Which part the band held."""
    return statistics.mean(bill.is_covered for bill in bills)


def promises(bills: Sequence[Bill]) -> Iterator[tuple[str, bool]]:
    """Better with every run on average, and a band that means what it says."""
    for quantity in QUANTITIES:
        mine = [bill for bill in bills if bill.quantity == quantity]
        errors = [statistics.mean(bill.error for bill in mine if bill.n_runs == n) for n in AFTER]
        words = " > ".join(f"{error:.1%}" for error in errors)
        yield (
            f"{quantity}: mean error after {', '.join(map(str, AFTER))} runs {words}, falling (but for chance)",
            _falls(errors),
        )
        for kind in sorted({bill.kind for bill in mine}):
            held = [bill for bill in mine if bill.kind == kind and bill.n_runs > 0]
            share = coverage(held)
            yield (
                f"{quantity}, {kind}: the 80 % band held {share:.1%} of {len(held)} runs, within 75-90 %",
                LOWEST <= share <= HIGHEST,
            )


def _falls(errors: Sequence[float]) -> bool:
    return all(later < PLAY * earlier for earlier, later in pairwise(errors))


HISTORIES = {
    "good, bad": (0, 1),
    "good, good, good, bad": (0, 0, 0, 1),
    "bad, good": (1, 0),
    "bad, good, good": (1, 0, 0),
}


def outliers(plans: Sequence[RunPlan], n_machines: int) -> Iterator[tuple[str, bool]]:
    """One bad run among good ones: the bill stays as good as it was without any run at all."""
    for words, pattern in HISTORIES.items():
        found = [list(_after_outlier(plans, pattern, seed)) for seed in range(n_machines)]
        prior, after = (statistics.mean(errors[i] for errors in found) for i in (0, 1))
        yield (
            f"{words}: mean error of the wall time {after:.1%}, of the uncalibrated bill {prior:.1%}",
            after <= WORSE_THAN_PRIOR * prior,
        )


def _after_outlier(plans: Sequence[RunPlan], pattern: Sequence[int], seed: int) -> Iterator[float]:
    """Errors of the uncalibrated bill, and of the one after the runs."""
    chance = random.Random(f"outlier {seed}")
    machine = SCENARIOS["steady"].machine(seed, plans[0].hw.card.kind)
    ordered = chance.sample(list(plans), len(plans))
    n_same = len(pattern) if chance.random() < AGAIN else 0
    runs = [ordered[0]] * (n_same or 1) + ordered[1:]
    records = [
        machine.run(plan, disturbed=chance.uniform(*BAD) if is_bad else 1.0)
        for plan, is_bad in zip(runs, pattern, strict=False)
    ]
    plan = ordered[0]
    truth = _actual(plan, "wall_seconds", machine.run(plan))
    for calibration in (NO_CALIBRATION, calibrate(plan, records, None)):
        wall = estimate(replace(plan, calibration=calibration)).wall.seconds
        assert wall is not None
        yield abs(wall.mid / truth - 1)
