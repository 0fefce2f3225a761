"""What do measured peaks say about the process (or context) and about what grows with the micro-batch?

measured = known bytes (weights, gradients, moments) + base + factor x tokens' bytes (with the allocator's slack): base
and factor by weighted ridge regression around their priors. Runs of one size cannot tell the two apart and share the
error out by how sure each was; two sizes give slope and intercept. A card says base (device - reserved) by itself.
The band is that of the next run's peak (`next_run`), shared out between the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, sqrt

from preflight.calibration.evidence import SAME_PLAN
from preflight.calibration.next_run import P90_SIGMAS, Noise, noise_of
from preflight.calibration.robust import recent_mean, robust_mean
from preflight.hw_plan import CardKind
from preflight.memory.device import base_bytes, communication_bytes
from preflight.memory.peak import estimate_memory
from preflight.plan import Calibration, Factor, RunPlan
from preflight.units import MIB

Measured = tuple[RunPlan, str, float, Mapping[str, float | None]]  # plan, group, likeness to the plan, actual leaves

LATE_BYTES = 110 * MIB  # CPU: thread stacks and code paged in after `base_memory_bytes` was read (measured, 2 cores)
BASE_SIGMA_BYTES = 60 * MIB  # of the process's prior; with a measured base:
MEASURED_BASE_SIGMA_BYTES = 25 * MIB
FACTOR_SIGMA = 0.3  # of the formula for what grows with tokens, on a machine or a compiler never seen
RUN_SIGMA = 0.01  # between runs of one plan that nothing disturbs, of the peak
# Of a next run as long as only one is known: +-8 % on a processor, where the C library's heap and the pages of others
# decide, +-3 % on a card.
NOISE, NOISE_ON_CARDS = 0.0298, 0.0104
PLAN_SIGMA = 0.05  # between plans, of the peak
CONTEXT_SIGMA_BYTES = 20 * MIB
STEP = 0.05  # in the factor, to see how the estimate depends on it
N_LINEARISATIONS = 2
N_REWEIGHTINGS = 4
MAX_DISTRUST = 25.0
MIN_FACTOR = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The runs of one plan: their peak, and how sure it is for the plan in question."""

    plan: RunPlan
    likeness: float
    n_runs: int
    peak_bytes: float
    variance: float
    base_bytes: float | None
    log_bytes: tuple[float, ...]  # of every run, oldest first


def memory_factors(plan: RunPlan, runs: Sequence[Measured], elsewhere: str) -> dict[str, Factor | None]:
    """`base_memory_bytes` and `activation_bytes` as far as the runs say; the plan comes without a calibration."""
    on_cpu = plan.hw.card.kind is CardKind.cpu
    peaks = _peaks(runs, "peak_device_bytes" if on_cpu else "peak_reserved_bytes")
    if not peaks:
        return {}
    own = [peak for peak in peaks if peak.likeness >= 1.0]
    n_runs = own[0].n_runs if own else sum(peak.n_runs for peak in peaks)
    scope = SAME_PLAN if own else elsewhere
    base, base_sigma = _base_prior(plan, peaks) if on_cpu else (0.0, 0.0)
    fit = _fit(peaks, base, base_sigma)
    fixed_bytes, tokens_bytes = _line(plan, fit.factor)
    noise_of_peaks = noise_of([peak.log_bytes for peak in peaks], NOISE if on_cpu else NOISE_ON_CARDS, RUN_SIGMA)
    reach = _reach_bytes(fixed_bytes, tokens_bytes, peaks, fit, noise_of_peaks, n_runs)
    share = fit.factor * tokens_bytes / (fit.factor * tokens_bytes + fit.base) if tokens_bytes else 0.0
    around_factor = reach * share / tokens_bytes if tokens_bytes else 0.0
    around_base = reach * (1.0 - share)
    factors: dict[str, Factor | None] = {
        "activation_bytes": Factor(
            value=fit.factor,
            low=max(MIN_FACTOR / 2, fit.factor - around_factor),
            high=fit.factor + around_factor,
            n_runs=n_runs,
            scope=scope,
        ),
        "base_memory_bytes": Factor(
            value=fit.base,
            low=max(0.0, fit.base - around_base),
            high=fit.base + around_base,
            n_runs=n_runs,
            scope=scope,
        )
        if on_cpu
        else _context(runs, elsewhere),
    }
    return factors


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Posterior mean and covariance of base (bytes) and factor."""

    base: float
    factor: float
    base_variance: float
    factor_variance: float
    covariance: float


def _peaks(runs: Sequence[Measured], leaf: str) -> list[Peak]:
    groups: dict[str, list[Measured]] = {}
    for run in runs:
        if run[3].get(leaf):
            groups.setdefault(run[1], []).append(run)
    return [_peak(group, leaf) for group in groups.values()]


def _peak(group: Sequence[Measured], leaf: str) -> Peak:
    plan, _, likeness, _ = group[-1]
    values = [float(actual[leaf] or 0.0) for *_, actual in group]
    bases = [float(actual["base_memory_bytes"] or 0.0) for *_, actual in group if actual.get("base_memory_bytes")]
    mean, variance = recent_mean(values, [(RUN_SIGMA * value) ** 2 for value in values])
    return Peak(
        plan=plan,
        likeness=likeness,
        n_runs=len(group),
        peak_bytes=mean,
        variance=variance + (PLAN_SIGMA * mean) ** 2 * (1.0 - likeness),
        base_bytes=sorted(bases)[(len(bases) - 1) // 2] if bases else None,
        log_bytes=tuple(map(log, values)),
    )


def _base_prior(plan: RunPlan, peaks: Sequence[Peak]) -> tuple[float, float]:
    """The process as it was before the model, where that was measured, and what comes later."""
    measured = sorted(peak.base_bytes for peak in peaks if peak.base_bytes is not None)
    if not measured:
        return base_bytes(plan.hw.card.kind)[1], BASE_SIGMA_BYTES
    return measured[(len(measured) - 1) // 2] + LATE_BYTES, MEASURED_BASE_SIGMA_BYTES


def _fit(peaks: Sequence[Peak], base_prior: float, base_sigma: float) -> Fit:
    """Twice, since the peak phase may change with the factor."""
    fit = Fit(base=base_prior, factor=1.0, base_variance=0.0, factor_variance=0.0, covariance=0.0)
    for _ in range(N_LINEARISATIONS):
        lines = [_line(peak.plan, fit.factor) for peak in peaks]
        fit = _regression(peaks, lines, fit, base_prior, base_sigma)
    return fit


def _regression(
    peaks: Sequence[Peak], lines: Sequence[tuple[float, float]], fit: Fit, base_prior: float, base_sigma: float
) -> Fit:
    """Ridge, with Student-t weights. No base_sigma: the peaks hold no base (reserved bytes of a card)."""
    base, factor, has_base = fit.base, fit.factor, float(base_sigma > 0)
    a11 = a12 = a22 = determinant = 1.0
    for _ in range(N_REWEIGHTINGS):
        a11, a12, a22 = 1.0 / base_sigma**2 if has_base else 1.0, 0.0, 1.0 / FACTOR_SIGMA**2
        b1, b2 = base_prior * a11, a22
        for peak, (fixed, tokens) in zip(peaks, lines, strict=True):
            misfit = peak.peak_bytes - fixed - base - tokens * factor
            distrust = max(1.0, min(MAX_DISTRUST, (4.0 + misfit**2 / peak.variance) / 5.0))
            weight = 1.0 / (peak.variance * distrust)
            a11, a12, a22 = a11 + weight * has_base, a12 + weight * has_base * tokens, a22 + weight * tokens**2
            b1 += weight * has_base * (peak.peak_bytes - fixed)
            b2 += weight * tokens * (peak.peak_bytes - fixed)
        determinant = a11 * a22 - a12**2
        base, factor = (b1 * a22 - b2 * a12) / determinant, (a11 * b2 - a12 * b1) / determinant
        base, factor = max(0.0, base), max(MIN_FACTOR, factor)
    return Fit(
        base=base,
        factor=factor,
        base_variance=has_base * a22 / determinant,
        factor_variance=a11 / determinant,
        covariance=-has_base * a12 / determinant,
    )


def _line(plan: RunPlan, factor: float) -> tuple[float, float]:
    """The estimate as `fixed + tokens x factor` around this factor, the base left out."""
    below, above = _bytes(plan, factor * (1 - STEP)), _bytes(plan, factor * (1 + STEP))
    tokens = (above - below) / (2 * STEP * factor)
    return (above + below) / 2 - tokens * factor, tokens


def _bytes(plan: RunPlan, factor: float) -> float:
    """The bill's number with this factor: a CPU's resident set without its base, a card's reserved bytes."""
    known = Factor(value=factor, low=factor, high=factor, n_runs=1, scope="")
    nothing = Factor(value=0.0, low=0.0, high=0.0, n_runs=1, scope="")
    factors = {"activation_bytes": known, "base_memory_bytes": nothing}
    memory = estimate_memory(replace(plan, calibration=Calibration(n_runs=1, factors=factors, ledger_sha256=None)))
    return memory.device.mid if plan.hw.card.kind is CardKind.cpu else memory.reserved.mid


def _reach_bytes(
    fixed_bytes: float, tokens_bytes: float, peaks: Sequence[Peak], fit: Fit, noise: Noise, n_runs: int
) -> float:
    """From the plan's predicted peak to p90: the fit's own error, what other plans do not tell, the next run's."""
    fitted = fit.base_variance + 2 * tokens_bytes * fit.covariance + tokens_bytes**2 * fit.factor_variance
    peak = fixed_bytes + tokens_bytes * fit.factor + fit.base
    nearest = max(peak.likeness for peak in peaks)
    variance = max(0.0, fitted) + (PLAN_SIGMA * peak) ** 2 * (1.0 - nearest)
    return peak * noise.reach(n_runs, variance / peak**2)


def _context(runs: Sequence[Measured], elsewhere: str) -> Factor | None:
    """What a card holds beside the allocator: device - reserved - NCCL's share, of every run that has both."""
    values = []
    for plan, _, _, actual in runs:
        device, reserved = actual.get("peak_device_bytes"), actual.get("peak_reserved_bytes")
        if device and reserved and device > reserved:
            values.append(max(0.0, device - reserved - communication_bytes(plan.hw)[1]))
    if not values:
        return None
    mean, variance = robust_mean(values, [CONTEXT_SIGMA_BYTES**2] * len(values))
    edge = P90_SIGMAS * sqrt(variance + CONTEXT_SIGMA_BYTES**2)
    return Factor(value=mean, low=max(0.0, mean - edge), high=mean + edge, n_runs=len(values), scope=elsewhere)
