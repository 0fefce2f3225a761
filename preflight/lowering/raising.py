"""Is there room for a larger micro-batch, and would it be faster? Said with every bill, applied when asked for."""

from __future__ import annotations

from dataclasses import dataclass

from preflight.estimate import Estimate, estimate
from preflight.plan import RunPlan, valid_micro_batch_sizes
from preflight.step_time.step import estimate_step_time
from preflight.verdict.fitting import at_micro_batch_size, largest_fitting
from preflight.verdict.judge import Change
from preflight.verdict.needs import broken_budgets

WORTH_FRACTION = 0.01  # less is below what the sums can tell apart
RAISED_PIN = "lowering.raise_batch=false"


@dataclass(frozen=True, slots=True, kw_only=True)
class Faster:
    """The same global batch in larger passes."""

    plan: RunPlan
    estimate: Estimate
    saved_fraction: float  # of the step's time


def faster_batch(plan: RunPlan, worked_out: Estimate) -> Faster | None:
    """The larger micro-batch with the shortest step among those that keep every budget; None when none is worth it."""
    now = worked_out.step.seconds
    if now is None or worked_out.memory.usable_bytes is None or broken_budgets(plan, worked_out):
        return None
    valid = valid_micro_batch_sizes(plan.trainer, plan.hw.world_size)
    larger = [size for size in valid if size > plan.trainer.micro_batch_size]
    largest = largest_fitting(plan, larger)
    plans = [at_micro_batch_size(plan, size) for size in larger if largest is not None and size <= largest]
    timed = [(band.mid, one) for one in plans if (band := estimate_step_time(one).seconds) is not None]
    if not timed:
        return None
    seconds, best = min(timed, key=lambda pair: pair[0])
    saved_fraction = 1.0 - seconds / now.mid if now.mid > 0 else 0.0
    if saved_fraction < WORTH_FRACTION:
        return None
    its_estimate = estimate(best)
    if broken_budgets(best, its_estimate):
        return None
    return Faster(plan=best, estimate=its_estimate, saved_fraction=saved_fraction)


def raised(asked: RunPlan, faster: Faster) -> Change:
    """In words."""
    old, new = asked.trainer, faster.plan.trainer
    return Change(
        rung="batch",
        field="trainer.micro_batch_size",
        old=str(old.micro_batch_size),
        new=str(new.micro_batch_size),
        reason=(
            f"there is room, and a step takes {faster.saved_fraction:.0%} less; {new.grad_accum_steps} passes instead "
            f"of {old.grad_accum_steps}, still {old.tokens_per_step:,} tokens a step"
        ),
        pin=RAISED_PIN,
    )
