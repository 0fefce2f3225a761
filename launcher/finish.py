"""After the processes have ended: the ledger's line, and estimated beside actual."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.output import complain, say
from preflight import rundir
from preflight.actual import Actual
from preflight.bill import Bill
from preflight.errors import ExitCode
from preflight.plan import RunPlan
from preflight.planfile import to_jsonable
from preflight.record import append_to_ledger
from preflight.report.comparison import actual_text
from preflight.report.document import bill_document

if TYPE_CHECKING:
    from trainers.outcome import Outcome


def record(bill: Bill, actual: Actual | None, run_dir: Path | None, exit_code: int, reason: str) -> None:
    """One line in the ledger."""
    runs_dir = Path(bill.plan.runs_dir)
    _try(
        lambda: append_to_ledger(runs_dir, bill, actual, run_dir=run_dir, exit_code=exit_code, reason=reason),
        "the ledger was not written",
    )


def finish(bill: Bill, run_dir: Path, outcome: Outcome, *, as_json: bool) -> int:
    """Record and show what happened."""
    actual = measured(bill, run_dir, outcome)
    record(bill, actual, run_dir, actual.exit_code, actual.exit_reason)
    comparison = actual_text(bill.estimate, actual, bill.plan.trainer.n_steps, bill.plan.budget.money)
    _try(lambda: _append(run_dir / rundir.REPORT, "\n" + comparison), "report.txt was not completed")
    if as_json:
        say(json.dumps({**bill_document(bill), "actual": to_jsonable(actual), "exit_code": actual.exit_code}))
        if actual.exit_code != ExitCode.OK:
            complain(f"{how_to_go_on(actual, run_dir)}{last_word(actual)}")
    else:
        say(f"\n{comparison}\n{how_to_go_on(actual, run_dir)}{last_word(actual)} | {run_dir}")
    if explanation := explained(bill, actual):
        complain(explanation)
    rundir.release(run_dir)
    return actual.exit_code


def measured(bill: Bill, run_dir: Path, outcome: Outcome) -> Actual:
    """What the trainer wrote down, and why it ended as the launcher knows it; in actual.json from now on."""
    actual = rundir.read_actual(run_dir)
    if actual is None:  # the trainer ended before it could measure
        actual = rundir.unmeasured(bill.plan, run_dir, outcome.exit_code, outcome.reason, outcome.failed_rank)
    elif outcome.exit_code == ExitCode.TRAINING_FAILED and actual.exit_code != ExitCode.OK:
        # rank 0 may have written down that its neighbour was gone; the cause is known here
        actual = replace(
            actual, exit_code=outcome.exit_code, exit_reason=outcome.reason, failed_rank=outcome.failed_rank
        )
    if actual.exit_code == ExitCode.TRAINING_FAILED and not re.search(r"\bstep \d", actual.exit_reason):
        actual = replace(actual, exit_reason=f"{actual.exit_reason}, after step {actual.n_steps_done}")
    if actual.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        actual = replace(actual, exit_reason=f"{actual.exit_reason}, {_where(actual, bill.plan, run_dir)}")
    actual = replace(actual, is_out_of_memory=outcome.is_out_of_memory)
    _try(lambda: rundir.write_actual(run_dir, actual), "actual.json was not written")
    return actual


def _where(actual: Actual, plan: RunPlan, run_dir: Path) -> str:
    """How far a run came that was asked to stop, and what is left of it."""
    saved = rundir.newest_checkpoint(run_dir)
    if saved is None:
        kept = "nothing saved"
    else:
        kept = "checkpoint saved" if saved == actual.n_steps_done else f"the checkpoint of step {saved:,} is there"
    n_steps = plan.trainer.n_steps
    begun = f"after step {actual.n_steps_done:,} of {n_steps:,}" if actual.n_steps_done else "before the first step"
    return f"{begun}: {kept}"


def how_to_go_on(actual: Actual, run_dir: Path) -> str:
    """A line; empty when it is done, or when why it ended says what cures it (the guard with a larger budget)."""
    if actual.exit_code in (ExitCode.OK, ExitCode.STOPPED_AT_BUDGET) or "To fix:" in actual.exit_reason:
        return ""
    if rundir.newest_checkpoint(run_dir) is None:
        return ""
    return f"To go on: {shlex.join(['python', 'launch.py', f'resume={run_dir}'])}\n"


def last_word(actual: Actual) -> str:
    """Why it ended; the guard has said so in full where the run was stopped."""
    is_told = actual.exit_code == ExitCode.STOPPED_AT_BUDGET
    return f"stopped (exit code {actual.exit_code})" if is_told else actual.exit_reason


def explained(bill: Bill, actual: Actual) -> str | None:
    """Which tensor it was and what would have fitted, when memory ran out."""
    if actual.exit_code != ExitCode.TRAINING_FAILED:
        return None
    from preflight.oom import explain, explanation_text  # only failures pay for it

    explanation = explain(actual.exit_reason, bill.plan)
    return explanation_text(explanation) if explanation is not None else None


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def _try(act: Callable[[], None], trouble: str) -> None:
    """A disk that refuses costs a line on the screen, neither the run nor its exit code."""
    try:
        act()
    except OSError as error:
        complain(f"{trouble}: {error}")
