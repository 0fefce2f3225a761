"""Memory ran out although the sums said that it would do: what is lowered next?

The sums were wrong about this plan, so they do not choose here. Each rung goes down once, in the order of the plan's
own rungs, and only what is allowed and what a half-trained run can go on with: 8-bit moments cannot be made of the
optimizer's states so far, so that rung is left out. The batch is halved at least; accumulation keeps the global batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from preflight.estimate import estimate
from preflight.lowering.levels import BATCH, OPTIMIZER, PRECISION, levels, order_of
from preflight.lowering.lower import allowed_rungs
from preflight.lowering.rungs import changes_between
from preflight.plan import Precision, RunPlan, valid_micro_batch_sizes
from preflight.verdict.fitting import at_micro_batch_size
from preflight.verdict.judge import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRung:
    """The plan with one rung lowered."""

    rung: str
    plan: RunPlan
    changes: tuple[Change, ...]


def next_rung(plan: RunPlan, used: frozenset[str]) -> NextRung | None:
    """None: every rung that may be lowered has been, or has nothing lower."""
    allowed = allowed_rungs(plan) - used - {OPTIMIZER}
    for rung in order_of(plan):
        lower = _lowered(plan, rung) if rung in allowed else None
        if lower is not None:
            changes = changes_between(plan, estimate(plan), lower, estimate(lower), ("memory",))
            return NextRung(rung=rung, plan=lower, changes=changes)
    return None


def _lowered(plan: RunPlan, rung: str) -> RunPlan | None:
    if rung != BATCH:
        below = levels(plan, rung)[1:]
        return next((lower for lower in below if rung != PRECISION or _saves_memory(lower.trainer.precision)), None)
    sizes = valid_micro_batch_sizes(plan.trainer, plan.hw.world_size)
    halves = [size for size in sizes if 2 * size <= plan.trainer.micro_batch_size]
    return at_micro_batch_size(plan, halves[-1]) if halves else None


def _saves_memory(precision: Precision) -> bool:
    """TF32 keeps 4-byte numbers."""
    return precision is not Precision.tf32
