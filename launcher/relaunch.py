"""The run; and when memory runs out although the bill said that it would do, the run again, lower, if that is wanted.

Each rung is lowered once (`preflight.lowering.after_oom`), loudly, and training goes on from its last checkpoint in the
same folder. The ledger gets a line for each attempt: the ones that ran out of memory are mispredictions.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from conf.choices import OnOom, PolicyChoice
from launcher.finish import explained, measured, record
from launcher.output import complain
from preflight import rundir
from preflight.bill import Bill, make_bill
from preflight.errors import ExitCode
from preflight.lowering.after_oom import NextRung, next_rung
from preflight.lowering.levels import MODEL
from preflight.plan import RunPlan
from preflight.planfile import read_json, to_jsonable, write_json
from preflight.spent import remember
from preflight.verdict.judge import Finding

if TYPE_CHECKING:
    from trainers.outcome import Outcome


def run(
    bill: Bill, run_dir: Path, *, started_unix: float, resume: bool, progress: TextIO | None
) -> tuple[Bill, Outcome]:
    """How it ended, and the bill of what ended."""
    from trainers.backends import local  # bills do not pay for it

    local.follow_parent()
    used: frozenset[str] = frozenset()
    while True:
        outcome = local.run(bill.plan, run_dir, started_unix=started_unix, resume=resume, progress=progress)
        if not outcome.is_out_of_memory:
            return bill, outcome
        lower = _next(bill, used)
        if lower is None:
            return bill, outcome
        used, resume = used | {lower.rung}, True
        bill = _prepared(bill, outcome, lower, run_dir)
        started_unix = time.time()


def _next(bill: Bill, used: frozenset[str]) -> NextRung | None:
    """None, with the reason told: this is where it ends."""
    if bill.plan.lowering.on_oom is OnOom.stop:
        complain(
            "memory ran out although the bill said that it would do; lowering.on_oom=relaunch would lower and go on"
        )
        return None
    lower = next_rung(bill.plan, used)
    if lower is None:
        complain(f"memory ran out again, and no rung is left to lower (lowered: {', '.join(sorted(used)) or 'none'})")
        return None
    if make_bill(_frozen(lower.plan), ()).exit_code != ExitCode.OK:
        changes = ", ".join(f"{change.field} {change.old} -> {change.new}" for change in lower.changes)
        complain(f"memory ran out, and with {changes} the run would be over another budget: not started again")
        return None
    return lower


def _prepared(bill: Bill, outcome: Outcome, lower: NextRung, run_dir: Path) -> Bill:
    """The attempt is recorded, the folder says what runs from now on, and the user is told."""
    actual = measured(bill, run_dir, outcome)
    record(bill, actual, run_dir, actual.exit_code, actual.exit_reason)
    complain(f"MEMORY RAN OUT although the bill said that it would do: {actual.exit_reason}")
    if explanation := explained(bill, actual):
        complain(explanation)
    for change in lower.changes:
        complain(f"LOWERED {change.field}: {change.old} -> {change.new} ({change.reason}); to protect it: {change.pin}")
    if lower.rung == MODEL:
        set_aside = _set_aside(run_dir, bill.plan.name)
        complain(f"STARTED AGAIN from step 0: another model; checkpoints of {bill.plan.name} are in {set_aside}")
    else:
        complain("STARTED AGAIN from the last checkpoint (lowering.on_oom=relaunch)")
    path = run_dir / rundir.PLAN
    findings = read_json(tuple[Finding, ...], path, "findings")
    new = make_bill(_frozen(lower.plan), findings)
    changes = json.loads(path.read_text())["changes"] + to_jsonable(lower.changes)
    write_json(rundir.plan_document(new, findings) | {"changes": changes}, path)
    remember(run_dir, actual)
    rundir.forget_actual(run_dir)
    return replace(new, plan=replace(new.plan, lowering=bill.plan.lowering))


def _set_aside(run_dir: Path, name: str) -> Path:
    """Weights of another model: of no use to this one, and not this one's to delete."""
    place = run_dir / f"checkpoints_of_{name}"
    with suppress(FileNotFoundError):  # it had saved nothing
        (run_dir / "checkpoints").rename(place)
    return place


def _frozen(plan: RunPlan) -> RunPlan:
    """As it stands: neither lowered nor raised when it is worked out again."""
    policy = PolicyChoice.refuse if plan.lowering.policy is PolicyChoice.auto else plan.lowering.policy
    return replace(plan, lowering=replace(plan.lowering, policy=policy, raise_batch=False))
