"""Which constants would the sums have had without one source? The fit of the few step-time constants that are fitted.

Weighted sum of |log(estimated / measured)|, a source of n rows weighing sqrt(n), plus a weak pull to the start
(so that a constant about which the rows say nothing stays where it was); minimised by Nelder and Mead's simplex (1965).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, log, sqrt

from preflight.duration import forward_seconds
from preflight.step_time.constants import CUDA, FITTED, StepConstants
from preflight.step_time.step import StepTimeEstimate, estimate_step_time
from scripts.accuracy_throughput import MeasuredStep
from scripts.throughput_codes import LOADER_START_SECONDS

# Round numbers from before any fit.
START = replace(CUDA, sustained_fraction=0.9, sharding_fraction=0.95, eager_bytes=200.0)
PULL = 0.2
FIRST_STEP = 0.2  # of a constant's logarithm
N_ITERATIONS = 150


def estimated_seconds(step: MeasuredStep, constants: StepConstants | None = None) -> float:
    """The formula's answer for a row, uncalibrated."""
    estimate = estimate_step_time(step.plan, step.code, constants)
    assert estimate.raw_seconds is not None  # rows have cards of the catalog with known rates
    return estimate.raw_seconds + _timed_beside_seconds(step, estimate)


def _timed_beside_seconds(step: MeasuredStep, estimate: StepTimeEstimate) -> float:
    """A step's share of the evaluations that lie between two readings of the clock."""
    facts = step.facts
    forwards = facts.n_timed_forwards * forward_seconds(step.plan, estimate)
    return (forwards + facts.n_timed_loader_starts * LOADER_START_SECONDS) / facts.n_timed_steps


def fit(steps: Sequence[MeasuredStep]) -> StepConstants:
    """The fitted constants over these rows."""
    n_rows = Counter(step.source for step in steps)
    total = sum(sqrt(n) for n in n_rows.values())
    weights = [1 / sqrt(n_rows[step.source]) / total for step in steps]

    def loss(logs: Sequence[float]) -> float:
        constants = _constants(logs)
        misfit = sum(
            weight * abs(log(estimated_seconds(step, constants) / step.seconds))
            for weight, step in zip(weights, steps, strict=True)
        )
        return misfit + PULL * sum(value**2 for value in logs) / len(logs)

    return _constants(_minimum(loss, len(FITTED)))


def _constants(logs: Sequence[float]) -> StepConstants:
    """START with each fitted constant times exp(its entry)."""
    values = {name: getattr(START, name) * exp(value) for name, value in zip(FITTED, logs, strict=True)}
    return replace(START, **values)


def _minimum(loss: Callable[[Sequence[float]], float], n: int) -> list[float]:
    """Nelder and Mead's simplex from the origin."""
    simplex = [[0.0] * n] + [[FIRST_STEP * (i == j) for j in range(n)] for i in range(n)]
    ranked = sorted((loss(point), point) for point in simplex)
    for _ in range(N_ITERATIONS):
        (best, _), (second_worst, _), (worst, last) = ranked[0], ranked[-2], ranked[-1]
        centre = [sum(point[i] for _, point in ranked[:-1]) / n for i in range(n)]

        def towards(step: float, centre: list[float] = centre, last: list[float] = last) -> tuple[float, list[float]]:
            point = [c + step * (c - x) for c, x in zip(centre, last, strict=True)]
            return loss(point), point

        moved = towards(1.0)
        if moved[0] < best:
            moved = min(moved, towards(2.0))
        elif moved[0] >= second_worst:
            moved = min(moved, towards(-0.5))
        if moved[0] < worst:
            ranked[-1] = moved
        else:
            corner = ranked[0][1]
            shrunk = [[c + 0.5 * (x - c) for c, x in zip(corner, point, strict=True)] for _, point in ranked[1:]]
            ranked[1:] = [(loss(point), point) for point in shrunk]
        ranked.sort()
    return ranked[0][1]
