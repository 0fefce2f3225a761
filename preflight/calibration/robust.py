"""What is the mean of some measurements when one of them may be far off? Precision-weighted, with Student-t weights.

Weights are inverse variances, each made smaller by how improbable its value is under a t distribution (Lange, Little
and Taylor, 1989), starting from the weighted median: one disturbed run is passed over as soon as others disagree.
"""

from __future__ import annotations

from collections.abc import Sequence

T_DEGREES_OF_FREEDOM = 4.0
N_REWEIGHTINGS = 12
AGE_DECAY = 0.7  # each newer run of the same plan makes an older one count that much less: machines drift


def robust_mean(
    values: Sequence[float], variances: Sequence[float], prior_variance: float | None = None
) -> tuple[float, float]:
    """Mean and its variance, with a prior at 0 or none. What is far from the others counts less, the prior too."""
    if not values:
        return 0.0, prior_variance or 0.0
    has_prior = prior_variance is not None
    everything = [*values, 0.0] if has_prior else list(values)
    trusted = [*variances, prior_variance or 0.0] if has_prior else list(variances)
    mean = _lower_median(list(zip(values, variances, strict=True)))
    distrusted = trusted
    for _ in range(N_REWEIGHTINGS):
        distrusted = [
            variance * inflation((value - mean) ** 2 / variance)
            for value, variance in zip(everything, trusted, strict=True)
        ]
        mean, _ = combined(everything, distrusted)
    return combined(everything, distrusted)


def recent_mean(values: Sequence[float], variances: Sequence[float]) -> tuple[float, float]:
    """Of runs of one plan, oldest first, the newest counting most."""
    n = len(values)
    return robust_mean(values, [variance / AGE_DECAY ** (n - 1 - i) for i, variance in enumerate(variances)])


def n_effective(n_runs: int) -> float:
    """How many equal runs tell as much as that many which age: (sum of weights)^2 / sum of squared weights."""
    weights = [AGE_DECAY**i for i in range(n_runs)]
    return sum(weights) ** 2 / sum(weight**2 for weight in weights)


def inflation(squared_sigmas: float) -> float:
    """By how much the t distribution distrusts a value that many sigmas away; within one sigma it does not."""
    return max(1.0, (T_DEGREES_OF_FREEDOM + squared_sigmas) / (T_DEGREES_OF_FREEDOM + 1.0))


def combined(values: Sequence[float], variances: Sequence[float]) -> tuple[float, float]:
    """Precision-weighted mean, and its variance."""
    precision = sum(1.0 / variance for variance in variances)
    return sum(value / variance for value, variance in zip(values, variances, strict=True)) / precision, 1.0 / precision


def _lower_median(observed: Sequence[tuple[float, float]]) -> float:
    """By precision; of two equal halves the lower one, since disturbances make runs slower and larger, not better."""
    half = sum(1.0 / variance for _, variance in observed) / 2
    weight = 0.0
    for value, variance in sorted(observed):
        weight += 1.0 / variance
        if weight >= half * (1.0 - 0.2):
            return value
    return max(value for value, _ in observed)
