"""One call from plan to answer: estimate, judge, lower, judge again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from conf.choices import PolicyChoice, Show
from preflight.errors import ExitCode
from preflight.estimate import Estimate
from preflight.lowering.lower import allowed_rungs, largest_micro_batch, lower
from preflight.lowering.raising import Faster
from preflight.plan import RunPlan
from preflight.units import format_bytes, format_seconds, format_usd
from preflight.verdict.judge import Decision, Finding, Severity, Verdict, Violation, warnings

if TYPE_CHECKING:
    from preflight.lowering.ladder import Step


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Bill:
    """What `launch.py` prints, stores in plan.json and acts on."""

    plan: RunPlan  # the one that will run: lowered when that was needed
    estimate: Estimate
    asked_plan: RunPlan | None  # as asked for, when lowering changed it
    asked_estimate: Estimate | None
    verdict: Verdict
    largest_micro_batch: int | None
    exit_code: ExitCode  # of a dry run
    faster: Faster | None = None  # a larger micro-batch that was not asked for
    ladder: tuple[Step, ...] = ()  # of a refusal, and when asked for
    is_resumed: bool = False  # a run that goes on takes limits alone: nothing else is offered

    def __repr__(self) -> str:
        """One line: in a notebook a bill is looked at, not read field by field."""
        wall, cost, memory = self.estimate.wall.seconds, self.estimate.cost.cost_usd, self.estimate.memory.device
        return (
            f"<Bill of {self.plan.model.name} on {self.plan.hw.world_size} x {self.plan.hw.card.label}: "
            f"{self.verdict.decision.name}, {format_bytes(memory.mid)}, "
            f"{'time unknown' if wall is None else format_seconds(wall.mid)}, "
            f"{'cost unknown' if cost is None else format_usd(cost.mid)}>"
        )


def make_bill(plan: RunPlan, findings: tuple[Finding, ...]) -> Bill:
    """Pure: the same plan and findings give the same bill, as a dry run prints it."""
    lowered = lower(plan)
    refused = bool(lowered.violations) and plan.lowering.policy is not PolicyChoice.off
    found = (*findings, *_let_through(plan, lowered.violations), *warnings(lowered.plan, lowered.estimate))
    verdict = Verdict(
        decision=Decision.refuse if refused else Decision.go_lowered if lowered.changes else Decision.go,
        violations=lowered.violations,
        changes=lowered.changes,
        findings=_gravest_first(found),
        would_help=lowered.would_help,
    )
    return Bill(
        plan=lowered.plan,
        estimate=lowered.estimate,
        asked_plan=plan if lowered.changes else None,
        asked_estimate=lowered.asked_estimate if lowered.changes else None,
        verdict=verdict,
        largest_micro_batch=largest_micro_batch(lowered.plan),
        exit_code=ExitCode.OVER_BUDGET if refused else ExitCode.OK,
        faster=lowered.faster,
        ladder=_ladder(plan) if refused or plan.lowering.show is Show.ladder else (),
    )


def _ladder(plan: RunPlan) -> tuple[Step, ...]:
    from preflight.lowering.ladder import ladder  # a yes does not pay for it

    return ladder(plan, allowed_rungs(plan))


def for_launch(bill: Bill) -> Bill:
    """The bill of a real run: what a dry run only reports, the wrong machine or missing data, stops it."""
    code = launch_exit_code(bill)
    decision = Decision.wrong_machine if code is ExitCode.WRONG_MACHINE else bill.verdict.decision
    return replace(bill, exit_code=code, verdict=replace(bill.verdict, decision=decision))


def launch_exit_code(bill: Bill) -> ExitCode:
    """What a real run stops with before anything starts: configuration or data, machine, budget, in this order."""
    codes = {finding.exit_code for finding in bill.verdict.findings if finding.severity is Severity.error}
    if bill.verdict.decision is Decision.refuse:
        codes.add(ExitCode.OVER_BUDGET)
    order = (ExitCode.CONFIG, ExitCode.WRONG_MACHINE, ExitCode.OVER_BUDGET, ExitCode.TRAINING_FAILED)
    return next((code for code in order if code in codes), ExitCode.OK)


def _let_through(plan: RunPlan, broken: tuple[Violation, ...]) -> tuple[Finding, ...]:
    """lowering.policy=off launches anyway, and says so."""
    if plan.lowering.policy is not PolicyChoice.off:
        return ()
    return tuple(
        Finding(
            check=f"budget.{violation.budget}",
            severity=Severity.warning,
            message=f"over budget, launched all the same (lowering.policy=off): {violation.message}",
            fix=violation.fix,
        )
        for violation in broken
    )


def _gravest_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    order = (Severity.error, Severity.warning, Severity.info)
    return tuple(sorted(findings, key=lambda finding: order.index(finding.severity)))
