"""Seconds of one optimizer step, term by term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from preflight.band import Band
from preflight.plan import RunPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeEstimate:
    """One optimizer step over all ranks. None: the card's rate is unknown."""

    seconds: Band | None
    terms_seconds: Mapping[str, float]  # sum to seconds.mid
    flops_per_step: float  # model FLOPs of all ranks (causal attention, no recomputation)
    peak_flops_per_second: float | None  # of all ranks, at the plan's precision
    tokens_per_second: Band | None
    mfu: float | None
    raw_seconds: float | None  # before calibration


def estimate_step_time(plan: RunPlan) -> StepTimeEstimate:
    """Compute, memory traffic, launches and communication of one step."""
    raise NotImplementedError
