"""Go or no: the needs of the estimate held against the budgets, each violation with its cures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from conf.choices import JudgeOn
from preflight.estimate import Estimate
from preflight.estimate import estimate as work_out
from preflight.plan import RunPlan
from preflight.units import format_bytes
from preflight.verdict.needs import (
    IN_BYTES,
    IN_HOURS,
    ROOM_BUDGETS,
    Need,
    amount,
    needs_of,
    path_and_value,
    path_of,
)


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
class Change:
    """One thing that lowering changed, or would."""

    rung: str  # batch | precision | model | ...
    field: str  # trainer.micro_batch_size
    old: str
    new: str
    reason: str
    pin: str  # the override that protects the old value; of a change not made: the override that makes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One budget that the plan breaks."""

    budget: str  # memory | hours | deadline | cost_usd | energy_kwh | disk | host_memory
    need: float | None  # base unit of the budget: bytes, hours, USD, kWh; None: unknown
    limit: float
    message: str  # one line with path, value, limit
    fix: str  # overrides that work, "" when there is none
    nearest: tuple[Change, ...] = ()  # the least lowering that keeps this budget, each change with its override


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """The plan that would run if only memory counted."""

    plan: RunPlan
    by_itself: bool  # lowering takes it, or a batch alone makes it; else it is what memory's own fix makes


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


def violations(
    plan: RunPlan,
    estimate: Estimate,
    fitting: Fitting | None = None,
    nearest: Callable[[str], tuple[Change, ...]] = lambda budget: (),
) -> tuple[Violation, ...]:
    """Every budget that the estimate breaks; what cures hours, money and energy is worked out for `fitting`."""
    fitting = fitting or Fitting(plan=plan, by_itself=True)
    broken = [(need, nearest(need.budget)) for need in needs_of(plan, estimate) if need.is_broken]
    return tuple(
        Violation(
            budget=need.budget,
            need=need.edge,
            limit=need.limit,
            message=_message(plan, estimate, need),
            fix=_fix(plan, estimate, need, fitting, " ".join(change.pin for change in near)),
            nearest=near,
        )
        for need, near in broken
    )


def warnings(plan: RunPlan, estimate: Estimate) -> tuple[Finding, ...]:
    """Budgets that hold on the middle but not on the high edge, and those that nobody can judge."""
    return _unjudged(plan, estimate) + _close_calls(plan, estimate)


def _fix(plan: RunPlan, estimate: Estimate, need: Need, fitting: Fitting, nearest: str) -> str:
    from preflight.verdict import remedies  # a yes does not pay for it

    if need.budget == "memory":
        return remedies.memory_remedy(plan, estimate, nearest, None if fitting.by_itself else fitting.plan)
    if need.edge is None:
        return remedies.unknown_remedy(plan, estimate, need.budget)
    if need.budget in IN_BYTES:
        return remedies.room_remedy(plan, estimate, need)
    basis, edge = _basis(plan, need.edge, need, fitting)
    is_model = basis.plan.model == plan.model
    given_with = "memory's first fix" * (not basis.by_itself) if is_model else f"{basis.plan.model.name}, which fits"
    if need.budget not in IN_HOURS:
        return remedies.spending_remedy(basis.plan, need.budget, edge, _keeps_known_budgets, given_with)
    return remedies.hours_remedy(basis.plan, need.budget, edge, _keeps_known_budgets, given_with, is_model=is_model)


def _basis(plan: RunPlan, asked_edge: float, need: Need, fitting: Fitting) -> tuple[Fitting, float]:
    """The plan that all cures of a budget are worked out for, with what it takes of it.

    Where what fits keeps the budget, only the plan as asked has to be cured of it.
    """
    edge = next(iter(_edges(fitting.plan, need.budget)), 0.0) if fitting.plan is not plan else asked_edge
    return (fitting, edge) if edge > need.limit else (Fitting(plan=plan, by_itself=True), asked_edge)


def _keeps_known_budgets(candidate: RunPlan, candidate_estimate: Estimate) -> bool:
    """Of those that a shorter run or a faster machine can keep."""
    needs = needs_of(candidate, candidate_estimate)
    return all(need.edge is None or not need.is_broken or need.budget in ROOM_BUDGETS for need in needs)


def _edges(plan: RunPlan, budget: str) -> list[float]:
    needs = needs_of(plan, work_out(plan))
    return [need.edge for need in needs if need.budget == budget and need.edge is not None]


def _message(plan: RunPlan, estimate: Estimate, need: Need) -> str:
    """Path, value, limit."""
    from preflight.verdict import remedies  # a yes does not pay for it

    if need.budget == "memory":
        return remedies.memory_message(plan, estimate)
    path, what = path_and_value(plan, need), f"{plan.model.name} on {plan.hw.declared}"
    if need.edge is None:
        noun = "cost" if need.budget == "cost_usd" else "energy"
        return f"{path} cannot be kept: the {noun} of {what} is unknown ({estimate.cost.rates.basis})."
    if need.budget in IN_BYTES:
        where = "on the disk" if need.budget == "disk" else "of host memory on each node"
        return f"{what} takes {amount(need.budget, need.edge)} {where} of {path}."
    edge = "at the high edge" if plan.budget.judge_on is JudgeOn.high else "expected"
    return f"{what} takes {amount(need.budget, need.edge)} ({edge}) of {path}."


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
    for need in needs_of(plan, estimate):
        if need.band is not None and not need.is_broken and need.band.high > need.limit:
            from preflight.verdict import remedies  # most bills have no close call

            mid, high = amount(need.budget, need.band.mid), amount(need.budget, need.band.high)
            message = f"{path_and_value(plan, need)} holds for the {mid} expected, not for the high edge of {high}"
            path = path_of(need.budget)
            more = "a later one" if need.budget == "deadline" else f"{path}={remedies.rounded_up(need.band.high):g}"
            fix = f"{more}, or budget.judge_on=high to be strict"
            found.append(Finding(check=f"budget.{need.budget}", severity=Severity.warning, message=message, fix=fix))
    return tuple(found)
