"""How many seconds does one optimizer step take, how sure is that, and what share of the peak is it?

The terms are in `step_terms`, their constants in `step_constants`. The band is p10..p90 of measured / estimated over
public training runs (scripts/bench_accuracy_throughput.py), or what earlier runs on the same card left of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from preflight.band import Band, around
from preflight.hw_plan import CardKind
from preflight.plan import RunPlan
from preflight.products import product_precision, rounds_products
from preflight.step_time.card_rates import CardRates, card_rates, peak_flops_per_second
from preflight.step_time.constants import CONSTANTS, StepConstants
from preflight.step_time.flops import plan_flops_per_token
from preflight.step_time.implementation import OUR_TRAINER, Implementation
from preflight.step_time.terms import step_terms_seconds
from preflight.units import format_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeEstimate:
    """One optimizer step over all ranks. None: the card's rate is unknown."""

    seconds: Band | None
    terms_seconds: Mapping[str, float]  # sum to seconds.mid
    flops_per_step: float  # model FLOPs of all ranks (causal attention, no recomputation)
    peak_flops_per_second: float | None  # of all ranks, in the arithmetic of the products
    tokens_per_second: Band | None
    mfu: float | None
    raw_seconds: float | None  # before calibration


def estimate_step_time(
    plan: RunPlan, code: Implementation = OUR_TRAINER, constants: StepConstants | None = None
) -> StepTimeEstimate:
    """Compute, memory traffic, launches and communication of one step; `constants` are the kind's unless given."""
    tokens = plan.trainer.tokens_per_step
    flops = float(plan_flops_per_token(plan) * tokens)
    peak = all_ranks_peak_flops_per_second(plan)
    the_constants = constants or CONSTANTS[plan.hw.card.kind]
    rates = _rates(plan, the_constants)
    if rates is None:
        return _unknown(flops, peak)
    raw_terms = step_terms_seconds(plan, rates, the_constants, code)
    raw_seconds = sum(raw_terms.values())
    seconds = _band(plan, raw_seconds, the_constants)
    scale = seconds.mid / raw_seconds
    return StepTimeEstimate(
        seconds=seconds,
        terms_seconds={name: scale * value for name, value in raw_terms.items()},
        flops_per_step=flops,
        peak_flops_per_second=peak,
        tokens_per_second=Band(
            low=tokens / seconds.high, mid=tokens / seconds.mid, high=tokens / seconds.low, source=seconds.source
        ),
        mfu=None if peak is None else flops / (seconds.mid * peak),
        raw_seconds=raw_seconds,
    )


def _rates(plan: RunPlan, constants: StepConstants) -> CardRates | None:
    """None: unknown. PyTorch's fused attention for processors does not round what the trainer's own products do."""
    rates = card_rates(plan.hw, product_precision(plan), constants)
    exact = card_rates(plan.hw, plan.trainer.precision, constants) if rounds_products(plan) else None
    if rates is None or exact is None:
        return rates
    return replace(rates, attention_flops_per_second=exact.attention_flops_per_second)


def _unknown(flops: float, peak: float | None) -> StepTimeEstimate:
    return StepTimeEstimate(
        seconds=None,
        terms_seconds={},
        flops_per_step=flops,
        peak_flops_per_second=peak,
        tokens_per_second=None,
        mfu=None,
        raw_seconds=None,
    )


def all_ranks_peak_flops_per_second(plan: RunPlan) -> float | None:
    """What MFU is measured against. A cpu card is the whole processor of a node, any other card one rank."""
    peak = peak_flops_per_second(plan.hw.card, product_precision(plan))
    if peak is None:
        return None
    n_cards = plan.hw.n_nodes if plan.hw.card.kind is CardKind.cpu else plan.hw.world_size
    return peak * n_cards


def _band(plan: RunPlan, raw_seconds: float, constants: StepConstants) -> Band:
    factor = plan.calibration.factors.get("step_seconds")
    if factor is None:
        return around(raw_seconds, constants.low_factor, constants.high_factor, "formula, uncalibrated")
    return Band(
        low=raw_seconds * factor.low,
        mid=raw_seconds * factor.value,
        high=raw_seconds * factor.high,
        source=f"formula x {factor.value:.2f}, calibrated ({format_runs(factor.n_runs)}, {factor.scope})",
    )
