"""How far may the next run lie from the mean of the earlier ones? p10 and p90 of a run to come, not of the mean.

One run says nothing about how much runs differ, so the spread starts at one that is assumed for the kind of machine
and counts as `PRIOR_RUNS` runs. With a normal run-to-run error of unknown variance (scaled inverse chi-squared prior)
the next run has a Student-t distribution of PRIOR_RUNS + n degrees of freedom and the scale sigma x sqrt(1 + 1/n)
(Gelman et al., Bayesian Data Analysis, 3rd ed., 3.2-3.3): wide after one run, narrower with each that agrees.

The n errors are those of forecasts: each run against the mean of those before it (Dawid's prequential principle,
1984). Noise makes them large, and so does a drift, which the scatter around the mean of all runs would understate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from preflight.calibration.robust import n_effective, recent_mean

PRIOR_RUNS = 2.0  # few: three or four runs that agree are believed more than what is assumed
MIN_NOISE = 0.4  # times the noise assumed; the floor: however well some runs agree, the next may be disturbed
MAX_NOISE = 4.0  # times the noise assumed; an error beyond that is of something else, and counts as that much
N_FORECASTS = 10  # the latest ones of each plan; older ones tell of another machine, and cost time in every bill
P90_SIGMAS = 1.2816  # of a normal distribution: p10 and p90 lie that far from the middle


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Standard deviation of one run, and how many degrees of freedom it rests on."""

    sigma: float
    degrees: float

    def reach(self, n_runs: int, mean_variance: float) -> float:
        """From the middle to p90 of the next run: `mean_variance` is known, `n_runs` carry this noise."""
        own = t_p90(self.degrees) * self.sigma
        return sqrt(P90_SIGMAS**2 * mean_variance + own**2 * (1.0 + 1.0 / n_effective(n_runs)))


def noise_of(groups: Sequence[Sequence[float]], assumed: float, sigma: float) -> Noise:
    """From the runs of several plans of one machine, oldest first; `sigma` weighs them when they are averaged."""
    errors = [error for group in groups for error in _forecast_errors(group, sigma)]
    squares = sum(min(MAX_NOISE * assumed, abs(error)) ** 2 for error in errors)
    degrees = PRIOR_RUNS + len(errors)
    seen = sqrt((PRIOR_RUNS * assumed**2 + squares) / degrees)
    return Noise(sigma=max(MIN_NOISE * assumed, seen), degrees=degrees)


def _forecast_errors(values: Sequence[float], sigma: float) -> list[float]:
    """Each run against the mean of those before it, in units where that mean were known exactly."""
    errors = []
    for i in range(max(1, len(values) - N_FORECASTS), len(values)):
        before = values[max(0, i - N_FORECASTS) : i]
        mean, _ = recent_mean(before, [sigma**2] * len(before))
        errors.append((values[i] - mean) / sqrt(1.0 + 1.0 / n_effective(len(before))))
    return errors


def t_p90(degrees: float) -> float:
    """p90 of Student's t by its expansion around the normal one (Fisher and Cornish, 1960); within 2 % from 2 up."""
    z = P90_SIGMAS
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
