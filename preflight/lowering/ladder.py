"""The whole ladder, rung by rung: what each would save, and whether that would be a yes.

Rungs that are on are climbed one upon the other, the batch going up again as far as it fits; one that is off is tried
alone on top of those before it, so that people see what switching it on would do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from preflight.band import Band
from preflight.estimate import estimate
from preflight.lowering.levels import BATCH, FIELDS, MODEL, levels, order_of, value_of
from preflight.plan import RunPlan, valid_micro_batch_sizes
from preflight.sharing import can_share
from preflight.verdict.fitting import at_micro_batch_size, largest_fitting
from preflight.verdict.needs import broken_budgets

AS_ASKED = "as asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One rung of the ladder, one level of it."""

    rung: str  # AS_ASKED for the first
    setting: str  # as it would be typed; "" for the first
    micro_batch_size: int
    is_on: bool  # configuration and consent allow it
    memory_bytes: float  # of a rank, at the high edge
    saved_memory_bytes: float  # against the step that it stands on
    wall_seconds: Band | None
    saved_seconds: float | None
    cost_usd: Band | None
    energy_kwh: Band | None
    broken: tuple[str, ...]  # empty: a yes


def ladder(plan: RunPlan, allowed: frozenset[str]) -> tuple[Step, ...]:
    """From what was asked for, the least change first, to the first model that is a yes."""
    return tuple(_steps(plan, allowed))


def _steps(plan: RunPlan, allowed: frozenset[str]) -> Iterator[Step]:
    current, before = plan, _step(AS_ASKED, "", plan, is_on=True)
    yield before
    for rung in order_of(plan):
        is_on = rung in allowed
        for lower in _lower(current, rung):
            one = lower if rung == BATCH else _refitted(lower, plan, may_change=BATCH in allowed)
            value = one.trainer.micro_batch_size if rung == BATCH else value_of(one, rung)
            step = _step(rung, f"{FIELDS[rung]}={value}", one, is_on=is_on, before=before)
            yield step
            if is_on:
                current, before = one, step
            if rung == MODEL and not step.broken:
                return


def _lower(plan: RunPlan, rung: str) -> tuple[RunPlan, ...]:
    if rung != BATCH:
        return tuple(lower for lower in levels(plan, rung)[1:] if can_share(lower.trainer))
    smaller = _refitted(plan, plan, may_change=True)
    return () if smaller == plan else (smaller,)


def _refitted(plan: RunPlan, asked: RunPlan, *, may_change: bool) -> RunPlan:
    """With the largest batch up to the asked one that fits; the smallest when none does."""
    if not may_change:
        return plan
    valid = valid_micro_batch_sizes(plan.trainer, plan.hw.world_size)
    sizes = [size for size in valid if size <= asked.trainer.micro_batch_size]
    return at_micro_batch_size(plan, largest_fitting(plan, sizes) or sizes[0]) if sizes else plan


def _step(rung: str, setting: str, plan: RunPlan, *, is_on: bool, before: Step | None = None) -> Step:
    worked_out = estimate(plan)
    memory, wall = worked_out.memory.device.high, worked_out.wall.seconds
    earlier = before.wall_seconds if before is not None else None
    return Step(
        rung=rung,
        setting=setting,
        micro_batch_size=plan.trainer.micro_batch_size,
        is_on=is_on,
        memory_bytes=memory,
        saved_memory_bytes=before.memory_bytes - memory if before is not None else 0.0,
        wall_seconds=wall,
        saved_seconds=earlier.mid - wall.mid if earlier is not None and wall is not None else None,
        cost_usd=worked_out.cost.cost_usd,
        energy_kwh=worked_out.cost.energy_kwh,
        broken=broken_budgets(plan, worked_out),
    )
