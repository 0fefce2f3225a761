"""Go or no: the estimate held against the budgets, and the machine against the plan."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from preflight.estimate import Estimate
from preflight.plan import RunPlan


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

    budget: str  # memory | hours | cost_usd | energy_kwh | disk
    need: float  # base unit of the budget: bytes, hours, USD, kWh
    limit: float
    message: str  # one line with path, value, limit
    fix: str  # an override that works


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that lowering changed."""

    rung: str  # batch | precision | model
    field: str  # trainer.micro_batch_size
    old: str
    new: str
    reason: str
    pin: str  # the override that protects the old value


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


def violations(plan: RunPlan, estimate: Estimate) -> tuple[Violation, ...]:
    """Every budget that the estimate breaks."""
    raise NotImplementedError
