"""The whole estimate of a plan: memory, step time, wall time, money, energy, value."""

from __future__ import annotations

from dataclasses import dataclass

from preflight.cost import CostEstimate, estimate_cost
from preflight.duration import WallEstimate, estimate_wall
from preflight.memory.peak import MemoryEstimate, estimate_memory
from preflight.params import count_params
from preflight.plan import RunPlan
from preflight.step_time.step import StepTimeEstimate, estimate_step_time
from preflight.value import ValueEstimate, estimate_value
from preflight.worth import Worth, estimate_worth


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a plan needs."""

    n_params: int
    memory: MemoryEstimate
    step: StepTimeEstimate
    wall: WallEstimate
    cost: CostEstimate
    value: ValueEstimate
    worth: Worth
    disk_bytes: int  # checkpoints kept, and one in the making


def estimate(plan: RunPlan) -> Estimate:
    """Pure arithmetic: the same plan gives the same estimate, anywhere."""
    memory = estimate_memory(plan)
    step = estimate_step_time(plan)
    wall = estimate_wall(plan, step, memory.checkpoint_bytes)
    n_params = count_params(plan.model, plan.trainer.sequence_length).total
    cost, value = estimate_cost(plan, wall), estimate_value(plan)
    return Estimate(
        n_params=n_params,
        memory=memory,
        step=step,
        wall=wall,
        cost=cost,
        value=value,
        worth=estimate_worth(plan, n_params, wall, cost, value),
        disk_bytes=(plan.trainer.keep_checkpoints + plan.trainer.keep_best + 1) * memory.checkpoint_bytes,
    )
