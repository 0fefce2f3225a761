"""What do earlier runs say about measured / formula, how sure is it, and how much does each of them count?

The logarithm of the ratio is taken as a sum: what the formula gets wrong on this machine, plus what it gets wrong about
this plan, plus the noise of one run. Runs of other plans tell of the first part, the more of the second the more alike
they are; runs of the same plan tell of both, so one of them outweighs any number of others. Means are robust (`robust`)
and start at the formula; the band is that of the next run (`next_run`), reaching further up than down, since
disturbances make runs slower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, pi, sqrt
from typing import Any

from preflight.calibration.next_run import noise_of
from preflight.calibration.robust import combined, inflation, recent_mean, robust_mean
from preflight.plan import Factor

NOISE_PRIOR_RUNS = 4.0  # the noise assumed counts like that many runs
MAX_NOISE = 4.0  # times the noise assumed
# Something else ran on the machine: three runs in a hundred, which then take any factor in this range longer.
DISTURBED_FRACTION, LEAST_DISTURBANCE, LARGEST_DISTURBANCE = 0.03, 1.3, 5.0
POOLED_PLAN = 0.1  # plans that differ by no more (start-up, power) tell of each other's noise
DIFFERENCE_TO_SIGMA = 1.0 / (0.6745 * sqrt(2.0))  # median |difference| of two normal values -> standard deviation
SAME_PLAN = "same plan"
FIRST_STEP = "actual/first_step"
SMALLEST, LARGEST = 1e-12, 1e18  # seconds, bytes, steps, kWh: beyond them a file was edited by hand, or damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Standard deviations of the logarithm."""

    machine: float  # of the formula on a machine never seen
    plan: float  # between plans
    run: float  # between runs that nothing disturbs: by it runs are weighed
    noise: float  # of a next run, as long as only one is known
    skew: float = 0.15  # the band reaches this part further up, and less far down


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One run. `likeness` is 1 for the plan in question and towards 0 the less it has in common with it."""

    group: str  # runs of one plan share it
    likeness: float
    log_ratio: float
    variance: float  # beyond `Spread.run`: short runs and clocks


def sound_numbers(flat: Mapping[str, Any]) -> dict[str, float]:
    """The leaves of a record's `actual/` numbers that can have been measured; NaN and texts are in no range."""
    return {
        name.removeprefix("actual/"): value
        for name, value in flat.items()
        if isinstance(value, int | float) and (SMALLEST <= value <= LARGEST or (name == FIRST_STEP and value == 0))
    }


def factor_from(observations: Sequence[Observation], spread: Spread, elsewhere: str) -> Factor | None:
    """The factor for a plan, from runs ordered oldest first; None without any. `elsewhere` names what others share."""
    if not observations:
        return None
    groups: dict[str, list[Observation]] = {}
    for observation in observations:
        groups.setdefault(observation.group, []).append(observation)
    run_variance = _run_variance(list(groups.values()), spread.run)
    own = [group for group in groups.values() if group[0].likeness >= 1.0]
    others = [group for group in groups.values() if group[0].likeness < 1.0]
    mean, variance = _before_own_runs(others, spread, run_variance)
    if own:
        own_mean, own_variance = _group_mean(own[0], run_variance)
        conflict = inflation((own_mean - mean) ** 2 / (variance + own_variance))
        if not others:  # a formula that is far off on this machine says little
            variance *= conflict
        elif len(own[0]) == 1 and own_mean < mean:  # nobody confirms it: the further off, the less it counts
            own_variance *= conflict
        told_mean, told_variance = combined([mean, own_mean], [variance, own_variance])
        doubt = _disturbed(own_mean - mean, variance + own_variance) if len(own[0]) == 1 and others else 0.0
        mean, variance = _mixed(doubt, (mean, variance), (told_mean, told_variance))
    is_pooled = spread.plan <= POOLED_PLAN
    alike = [observations] if is_pooled else list(groups.values())
    noise = noise_of([[each.log_ratio for each in group] for group in alike], spread.noise, spread.run)
    n_runs = len(own[0]) if own else len(observations)
    reach = noise.reach(len(observations) if is_pooled else n_runs, variance)
    return Factor(
        value=exp(mean),
        low=exp(mean - (1.0 - spread.skew) * reach),
        high=exp(mean + (1.0 + spread.skew) * reach),
        n_runs=n_runs,
        scope=SAME_PLAN if own else elsewhere,
    )


def _disturbed(log_ratio: float, variance: float) -> float:
    """How probable is it that a run so much slower than expected was disturbed, rather than that its plan is slow?"""
    if log_ratio < log(LEAST_DISTURBANCE):
        return 0.0
    if_disturbed = DISTURBED_FRACTION / log(LARGEST_DISTURBANCE / LEAST_DISTURBANCE)
    if_sound = (1.0 - DISTURBED_FRACTION) * exp(-(log_ratio**2) / (2.0 * variance)) / sqrt(2.0 * pi * variance)
    return if_disturbed / (if_disturbed + if_sound)


def _mixed(doubt: float, before: tuple[float, float], told: tuple[float, float]) -> tuple[float, float]:
    """Mean and variance of a mixture: with probability `doubt` what was expected before, else what the run told."""
    mean = doubt * before[0] + (1.0 - doubt) * told[0]
    return mean, sum(p * (variance + (m - mean) ** 2) for p, (m, variance) in ((doubt, before), (1.0 - doubt, told)))


def _before_own_runs(
    others: Sequence[Sequence[Observation]], spread: Spread, run_variance: float
) -> tuple[float, float]:
    """What the machine's other runs let expect of this plan: their mean, and how far off a plan may be from it."""
    groups = [_group_mean(group, run_variance) for group in others]
    unlikeness = [1.0 - group[0].likeness for group in others]

    def expected(plan_variance: float) -> tuple[float, float]:
        variances = [variance + plan_variance * u for (_, variance), u in zip(groups, unlikeness, strict=True)]
        return robust_mean([mean for mean, _ in groups], variances, prior_variance=spread.machine**2)

    mean, _ = expected(spread.plan**2)
    plan_variance = _plan_variance(mean, groups, unlikeness, spread.plan**2)
    mean, variance = expected(plan_variance)
    return mean, variance + plan_variance * min(unlikeness, default=1.0)


def _plan_variance(
    mean: float, groups: Sequence[tuple[float, float]], unlikeness: Sequence[float], assumed: float
) -> float:
    """How far plans of this machine are from each other: what was seen, around what is assumed, outliers bounded."""
    seen = [
        min(MAX_NOISE**2, max(0.0, (value - mean) ** 2 - variance) / (assumed * u))
        for (value, variance), u in zip(groups, unlikeness, strict=True)
    ]
    return assumed * (NOISE_PRIOR_RUNS + sum(seen)) / (NOISE_PRIOR_RUNS + max(0, len(seen) - 1))


def _group_mean(group: Sequence[Observation], run_variance: float) -> tuple[float, float]:
    """Runs of one plan, the newest counting most."""
    return recent_mean([each.log_ratio for each in group], [run_variance + each.variance for each in group])


def _run_variance(groups: Sequence[Sequence[Observation]], assumed: float) -> float:
    """The noise between runs of one plan, around what is assumed; differences of neighbours do not see a drift."""
    steps = sorted(abs(later.log_ratio - earlier.log_ratio) for group in groups for earlier, later in pairwise(group))
    if not steps:
        return assumed**2
    seen = min(MAX_NOISE * assumed, steps[len(steps) // 2] * DIFFERENCE_TO_SIGMA)
    return (NOISE_PRIOR_RUNS * assumed**2 + len(steps) * seen**2) / (NOISE_PRIOR_RUNS + len(steps))
