"""After the processes have ended: the ledger's line, and estimated beside actual."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from preflight import rundir
from preflight.actual import Actual
from preflight.bill import Bill
from preflight.planfile import to_jsonable
from preflight.record import append_to_ledger
from preflight.report.render import actual_text, bill_document
from trainers.outcome import Outcome


def record(bill: Bill, actual: Actual | None, run_dir: Path | None, exit_code: int, reason: str) -> None:
    """One line in the ledger; a disk that refuses it is said, and costs neither the run nor its exit code."""
    try:
        append_to_ledger(Path(bill.plan.runs_dir), bill, actual, run_dir=run_dir, exit_code=exit_code, reason=reason)
    except OSError as error:
        print(f"the ledger was not written: {error}", file=sys.stderr)


def finish(bill: Bill, run_dir: Path, outcome: Outcome, *, as_json: bool) -> int:
    """Record and show what happened."""
    actual = rundir.read_actual(run_dir)
    if actual is None:  # the trainer ended before it could measure
        actual = rundir.unmeasured(bill.plan, run_dir, outcome.exit_code, outcome.reason, outcome.failed_rank)
    elif outcome.failed_rank is not None:  # rank 0 wrote down that its neighbour was gone; the cause is known here
        actual = replace(
            actual, exit_code=outcome.exit_code, exit_reason=outcome.reason, failed_rank=outcome.failed_rank
        )
    rundir.write_actual(run_dir, actual)
    record(bill, actual, run_dir, actual.exit_code, actual.exit_reason)
    comparison = actual_text(bill.estimate, actual, bill.plan.trainer.n_steps)
    with (run_dir / rundir.REPORT).open("a") as file:
        file.write("\n" + comparison)
    if as_json:
        print(json.dumps({**bill_document(bill), "actual": to_jsonable(actual), "exit_code": actual.exit_code}))
    else:
        print(f"\n{comparison}\n{actual.exit_reason} | {run_dir}")
    return actual.exit_code
