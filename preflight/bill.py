"""One call from plan to answer: estimate, judge, lower, judge again."""

from __future__ import annotations

from dataclasses import dataclass

from preflight.errors import ExitCode
from preflight.estimate import Estimate
from preflight.plan import RunPlan
from preflight.verdict import Finding, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What `launch.py` prints, stores in plan.json and acts on."""

    plan: RunPlan  # the one that will run: lowered when that was needed
    estimate: Estimate
    asked_plan: RunPlan | None  # as asked for, when lowering changed it
    asked_estimate: Estimate | None
    verdict: Verdict
    largest_micro_batch: int | None
    exit_code: ExitCode  # of a dry run


def make_bill(plan: RunPlan, findings: tuple[Finding, ...]) -> Bill:
    """Pure: the same plan and findings give the same bill."""
    raise NotImplementedError
