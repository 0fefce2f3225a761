"""Wall time from the first import to the last byte written, term by term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from preflight.band import Band
from preflight.plan import RunPlan
from preflight.step_time import StepTimeEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class WallEstimate:
    """Terms: startup, compile, steps, evaluations, checkpoints, data, shutdown."""

    seconds: Band | None
    terms_seconds: Mapping[str, float]  # sum to seconds.mid


def estimate_wall(plan: RunPlan, step: StepTimeEstimate, checkpoint_bytes: int) -> WallEstimate:
    """Everything the machine is paid for."""
    raise NotImplementedError
