"""Runs whose launcher was killed outright: it could not record them, so the next launch in the same folder does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from launcher.finish import record
from launcher.output import complain
from preflight import rundir
from preflight.errors import ConfigError, ExitCode
from trainers.outcome import first_failure
from trainers.signals import LAUNCHER_KILLED


def record_killed(runs_dir: Path) -> None:
    """A line in the ledger and an actual.json for each."""
    for folder in rundir.abandoned(runs_dir):
        try:
            _record(folder)
        except ConfigError as error:
            complain(f"{folder}: {LAUNCHER_KILLED}, and its plan cannot be read: {error}")
        rundir.release(folder)


def _record(folder: Path) -> None:
    bill, _ = rundir.replay(folder / rundir.PLAN)
    actual = rundir.read_actual(folder)
    if actual is None:  # its ranks did not come to the end of their step
        failure = first_failure(folder)
        reason = LAUNCHER_KILLED if failure is None else failure.reason
        rank = None if failure is None else failure.rank
        actual = rundir.unmeasured(bill.plan, folder, ExitCode.TRAINING_FAILED, reason, rank)
    if actual.exit_reason == LAUNCHER_KILLED:
        actual = replace(actual, exit_reason=f"{LAUNCHER_KILLED} after step {actual.n_steps_done}")
    rundir.write_actual(folder, actual)
    record(bill, actual, folder, actual.exit_code, actual.exit_reason)
    complain(f"{folder}: {actual.exit_reason}; recorded now, and resume={folder} goes on")
