"""What does a plan take of each budget, on the edge that the budget is held against?

Memory is judged on the band's high edge, since running out ends a run, and so is a host's; disk is known to the byte.
Hours, the deadline, money and energy are judged on the middle, or on the high edge with `budget.judge_on=high`. What is
unknown cannot pass a budget of money or energy; unknown hours are a warning, because a run can be watched and stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

from conf.choices import JudgeOn
from preflight.band import Band
from preflight.estimate import Estimate
from preflight.hw_plan import CardKind
from preflight.plan import RunPlan
from preflight.units import GIB, SECONDS_PER_HOUR, format_bytes, format_hours, format_kwh, format_usd

IN_HOURS = ("hours", "deadline")
IN_BYTES = ("memory", "disk", "host_memory")
ROOM_BUDGETS = frozenset(IN_BYTES)  # they depend on what is kept, the others on how long it takes
BUDGET_WORDS = {
    "memory": "memory",
    "hours": "hours",
    "deadline": "deadline",
    "cost_usd": "money",
    "energy_kwh": "energy",
    "disk": "disk",
    "host_memory": "host memory",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a plan takes of one budget, in the budget's unit. None: unknown."""

    budget: str  # a key of BUDGET_WORDS
    band: Band | None
    limit: float
    edge: float | None  # the edge of the band that is held against the limit

    @property
    def is_broken(self) -> bool:
        """What is unknown is broken."""
        return self.edge is None or self.edge > self.limit


def judged(band: Band, judge_on: JudgeOn) -> float:
    """The edge that a budget is held against."""
    return band.high if judge_on is JudgeOn.high else band.mid


def needs_of(plan: RunPlan, estimate: Estimate) -> list[Need]:
    """Every budget that has a limit. Hours and memory that nobody knows are left to warnings."""
    return [*_memory(estimate), *_times(plan, estimate), *_spendings(plan, estimate), *_rooms(plan, estimate)]


def broken_budgets(plan: RunPlan, estimate: Estimate) -> tuple[str, ...]:
    """Names only, cheap: the search asks this of every candidate."""
    return tuple(need.budget for need in needs_of(plan, estimate) if need.is_broken)


def _memory(estimate: Estimate) -> list[Need]:
    usable, device = estimate.memory.usable_bytes, estimate.memory.device
    return [] if usable is None else [Need(budget="memory", band=device, limit=float(usable), edge=device.high)]


def _times(plan: RunPlan, estimate: Estimate) -> list[Need]:
    budget, wall = plan.budget, estimate.wall.seconds
    if wall is None or (budget.max_hours is None and budget.deadline_hours is None):
        return []
    hours = wall.scaled(1 / SECONDS_PER_HOUR)
    edge = judged(hours, budget.judge_on)
    limits = (("hours", budget.max_hours), ("deadline", budget.deadline_hours))
    return [Need(budget=name, band=hours, limit=limit, edge=edge) for name, limit in limits if limit is not None]


def _spendings(plan: RunPlan, estimate: Estimate) -> list[Need]:
    budget, cost = plan.budget, estimate.cost
    limits = (
        ("cost_usd", cost.cost_usd, budget.max_cost_usd),
        ("energy_kwh", cost.energy_kwh, budget.max_energy_kwh),
    )
    return [
        Need(budget=name, band=band, limit=limit, edge=None if band is None else judged(band, budget.judge_on))
        for name, band, limit in limits
        if limit is not None
    ]


def _rooms(plan: RunPlan, estimate: Estimate) -> list[Need]:
    budget, needs = plan.budget, []
    if budget.max_disk_bytes is not None:
        edge = float(estimate.disk_bytes)
        needs.append(Need(budget="disk", band=None, limit=budget.max_disk_bytes, edge=edge))
    if budget.max_host_memory_bytes is not None:
        edge = host_memory_bytes(plan, estimate)
        needs.append(Need(budget="host_memory", band=None, limit=budget.max_host_memory_bytes, edge=edge))
    return needs


def host_memory_bytes(plan: RunPlan, estimate: Estimate) -> float:
    """Of one node, at the high edge: on a CPU it is the memory of its ranks."""
    if plan.hw.card.kind is CardKind.cpu:
        return plan.hw.n_gpus_per_node * estimate.memory.device.high
    return float(estimate.memory.host_memory_bytes)


def path_of(budget: str) -> str:
    """The option, without its value."""
    names = {"deadline": "deadline", "memory": "max_memory_fraction", "disk": "max_disk_gib"}
    return f"budget.{names.get(budget, f'max_{budget}' + '_gib' * (budget in IN_BYTES))}"


def path_and_value(plan: RunPlan, need: Need) -> str:
    """What was given, with how far away a deadline is."""
    if need.budget == "deadline":
        return f"budget.deadline={plan.budget.deadline} ({amount('deadline', need.limit)} from now)"
    shown = f"{path_of(need.budget)}={need.limit / GIB if need.budget in IN_BYTES else need.limit:g}"
    is_short = need.budget == "hours" and need.limit < 1.0
    return f"{shown} ({amount('hours', need.limit)})" if is_short else shown


def amount(budget: str, value: float) -> str:
    """As people say it."""
    if budget in IN_BYTES:
        return format_bytes(value)
    if budget in IN_HOURS:
        return format_hours(value)
    return format_usd(value) if budget == "cost_usd" else format_kwh(value)
