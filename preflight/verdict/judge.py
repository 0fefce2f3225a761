"""Go or no: the estimate held against the budgets.

Memory is judged on the band's high edge, since running out ends a run; hours, money and energy on the middle, or on
the high edge with `budget.judge_on=high`. What is unknown cannot pass a budget of money or energy; unknown hours are
a warning, because a run can be watched and stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from conf.choices import JudgeOn
from preflight.band import Band
from preflight.estimate import Estimate
from preflight.estimate import estimate as work_out
from preflight.plan import RunPlan
from preflight.units import SECONDS_PER_HOUR, format_bytes, format_kwh, format_usd
from preflight.verdict.fitting import fits_memory
from preflight.verdict.remedies import (
    Need,
    hours_remedy,
    memory_message,
    memory_remedy,
    rounded_up,
    spending_remedy,
    unknown_remedy,
)

IN_HOURS = ("hours", "deadline")


class Decision(Enum):
    """The answer."""

    go = "go"
    go_lowered = "go_lowered"
    refuse = "refuse"
    wrong_machine = "wrong_machine"


class Severity(Enum):
    """How much a finding matters."""

    info = "info"
    warning = "warning"
    error = "error"  # a real run stops


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One budget that the plan breaks."""

    budget: str  # memory | hours | deadline | cost_usd | energy_kwh
    need: float | None  # base unit of the budget: bytes, hours, USD, kWh; None: unknown
    limit: float
    message: str  # one line with path, value, limit
    fix: str  # overrides that work, "" when there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that lowering changed, or would."""

    rung: str  # batch | precision | model
    field: str  # trainer.micro_batch_size
    old: str
    new: str
    reason: str
    pin: str  # the override that protects the old value; of a change not made: the override that makes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about the machine, the data or the plan that the user should know."""

    check: str
    severity: Severity
    message: str
    fix: str
    exit_code: int = 0  # what a real run stops with, when severity is error


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The decision with its reasons."""

    decision: Decision
    violations: tuple[Violation, ...]
    changes: tuple[Change, ...]
    findings: tuple[Finding, ...]
    would_help: tuple[Change, ...] = ()  # of a refusal: what policy or consent forbids but would make it a yes


def judged(band: Band, judge_on: JudgeOn) -> float:
    """The edge that a budget is held against."""
    return band.high if judge_on is JudgeOn.high else band.mid


def broken_budgets(plan: RunPlan, estimate: Estimate) -> tuple[str, ...]:
    """Names only, cheap: the search asks this of every candidate."""
    memory = () if fits_memory(estimate.memory) else ("memory",)
    return memory + tuple(need.budget for need in _needs(plan, estimate) if _is_broken(need))


def violations(plan: RunPlan, estimate: Estimate, fitting: RunPlan | None = None) -> tuple[Violation, ...]:
    """Every budget that the estimate breaks; fewer tokens are worked out for `fitting`, the plan that would run."""
    found = [_memory_violation(plan, estimate)] if not fits_memory(estimate.memory) else []
    found += [_violation(plan, estimate, need, fitting or plan) for need in _needs(plan, estimate) if _is_broken(need)]
    return tuple(found)


def warnings(plan: RunPlan, estimate: Estimate) -> tuple[Finding, ...]:
    """Budgets that hold on the middle but not on the high edge, and those that nobody can judge."""
    return _unjudged(plan, estimate) + _close_calls(plan, estimate)


def _needs(plan: RunPlan, estimate: Estimate) -> list[Need]:
    """The budgets besides memory that have a limit. Hours nobody knows are left to `warnings`."""
    budget, wall, cost = plan.budget, estimate.wall.seconds, estimate.cost
    needs: list[Need] = []
    if budget.max_hours is not None and wall is not None:
        hours = wall.scaled(1 / SECONDS_PER_HOUR)
        needs.append(Need(budget="hours", band=hours, limit=budget.max_hours, edge=judged(hours, budget.judge_on)))
    if budget.deadline_hours is not None and wall is not None:
        until = wall.scaled(1 / SECONDS_PER_HOUR)
        needs.append(
            Need(budget="deadline", band=until, limit=budget.deadline_hours, edge=judged(until, budget.judge_on))
        )
    for name, band, limit in (
        ("cost_usd", cost.cost_usd, budget.max_cost_usd),
        ("energy_kwh", cost.energy_kwh, budget.max_energy_kwh),
    ):
        if limit is not None:
            edge = None if band is None else judged(band, budget.judge_on)
            needs.append(Need(budget=name, band=band, limit=limit, edge=edge))
    return needs


def _is_broken(need: Need) -> bool:
    return need.edge is None or need.edge > need.limit


def _violation(plan: RunPlan, estimate: Estimate, need: Need, fitting: RunPlan) -> Violation:
    if need.edge is None:
        fix = unknown_remedy(plan, estimate, need.budget)
    else:
        edge = max(need.edge, *_edges(fitting, need.budget)) if fitting is not plan else need.edge
        fix = (
            hours_remedy(fitting, need.budget, edge, _keeps_known_budgets)
            if need.budget in IN_HOURS
            else spending_remedy(fitting, need.budget, edge, _keeps_known_budgets)
        )
    message = _message(plan, estimate, need)
    return Violation(budget=need.budget, need=need.edge, limit=need.limit, message=message, fix=fix)


def _keeps_known_budgets(candidate: RunPlan, candidate_estimate: Estimate) -> bool:
    return all(need.edge is None or need.edge <= need.limit for need in _needs(candidate, candidate_estimate))


def _edges(plan: RunPlan, budget: str) -> list[float]:
    needs = _needs(plan, work_out(plan))
    return [need.edge for need in needs if need.budget == budget and need.edge is not None]


def _message(plan: RunPlan, estimate: Estimate, need: Need) -> str:
    """Path, value, limit."""
    path = _path(plan, need)
    what = f"{plan.model.name} on {plan.hw.declared}"
    if need.edge is None:
        noun = "cost" if need.budget == "cost_usd" else "energy"
        return f"{path} cannot be kept: the {noun} of {what} is unknown ({estimate.cost.rates.basis})."
    edge = "at the high edge" if plan.budget.judge_on is JudgeOn.high else "expected"
    return f"{what} takes {_amount(need.budget, need.edge)} ({edge}) of {path}."


def _path(plan: RunPlan, need: Need) -> str:
    """What was given, with how far away a deadline is."""
    if need.budget == "deadline":
        return f"budget.deadline={plan.budget.deadline} ({_amount('deadline', need.limit)} from now)"
    return f"budget.max_{need.budget}={need.limit:g}"


def _amount(budget: str, value: float) -> str:
    """In the unit of the limit, so that the two can be compared at a glance."""
    if budget in IN_HOURS:
        return f"{value:,.4g} h" if value < 1000 else f"{value:,.0f} h"
    return format_usd(value) if budget == "cost_usd" else format_kwh(value)


def _memory_violation(plan: RunPlan, estimate: Estimate) -> Violation:
    memory = estimate.memory
    if memory.usable_bytes is None:
        raise ValueError("memory that nobody knows cannot be violated")
    return Violation(
        budget="memory",
        need=memory.device.high,
        limit=float(memory.usable_bytes),
        message=memory_message(plan, estimate),
        fix=memory_remedy(plan, estimate),
    )


def _unjudged(plan: RunPlan, estimate: Estimate) -> tuple[Finding, ...]:
    found = []
    hours, deadline = plan.budget.max_hours, plan.budget.deadline
    given = [] if hours is None else [f"budget.max_hours={hours:g}"]
    given += [] if deadline is None else [f"budget.deadline={deadline}"]
    if given and estimate.wall.seconds is None:
        message = f"the time on {plan.hw.card.label} is unknown, so {' and '.join(given)} is not judged"
        fix = "hw.card=custom with hw.custom.bf16_tflops= and hw.custom.bandwidth_gb_per_second=, or a short real run"
        found.append(Finding(check="budget.hours", severity=Severity.warning, message=message, fix=fix))
    if estimate.memory.usable_bytes is None:
        need = format_bytes(estimate.memory.device.high)
        message = f"the memory of {plan.hw.card.label} is unknown, so the {need} it takes are not judged"
        fix = "hw.card=custom hw.custom.memory_gib="
        found.append(Finding(check="budget.memory", severity=Severity.warning, message=message, fix=fix))
    return tuple(found)


def _close_calls(plan: RunPlan, estimate: Estimate) -> tuple[Finding, ...]:
    found = []
    for need in _needs(plan, estimate):
        if need.band is not None and not _is_broken(need) and need.band.high > need.limit:
            mid, high = _amount(need.budget, need.band.mid), _amount(need.budget, need.band.high)
            message = f"{_path(plan, need)} holds for the {mid} expected, not for the high edge of {high}"
            more = (
                "a later one"
                if need.budget == "deadline"
                else f"budget.max_{need.budget}={rounded_up(need.band.high):g}"
            )
            fix = f"{more}, or budget.judge_on=high to be strict"
            found.append(Finding(check=f"budget.{need.budget}", severity=Severity.warning, message=message, fix=fix))
    return tuple(found)
