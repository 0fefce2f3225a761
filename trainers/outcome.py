"""How a run ended, as files in its folder: torchrun turns every worker failure into exit 1, these keep the truth."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from preflight.errors import ExitCode
from trainers.warn import warn

IN_ORDER = frozenset({ExitCode.STOPPED_AT_BUDGET, ExitCode.INTERRUPTED, ExitCode.TERMINATED})  # checkpoint saved
FAILURES = "failures"  # one file a rank, and one of the agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One process that ended badly."""

    rank: int
    exit_code: int
    reason: str
    unix_seconds: float
    killed_by: str | None = None  # the signal's name, when nobody was left to write a reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended, for when the trainer left no measurements that say so."""

    exit_code: int
    reason: str
    failed_rank: int | None = None


def write_failure(run_dir: Path, failure: Failure, *, author: str) -> None:
    """Leave word; a run folder that is not on this node cannot be written to, and stderr has the reason then."""
    if not run_dir.is_dir():
        return
    folder = run_dir / FAILURES
    try:
        folder.mkdir(exist_ok=True)
        (folder / f"{author}.json").write_text(json.dumps(asdict(failure)) + "\n")
    except OSError as error:  # a full disk, which may well be the failure
        warn(f"{folder} was not written: {error}")


def clear_failures(run_dir: Path) -> None:
    """Forget the failures of an earlier segment before resuming."""
    for path in (run_dir / FAILURES).glob("*.json"):
        path.unlink(missing_ok=True)


def first_failure(run_dir: Path) -> Failure | None:
    """The cause: a rank that was killed outright, else the earliest to fail. Later failures follow from it."""
    files = sorted((run_dir / FAILURES).glob("*.json"))
    failures = [failure for failure in map(_read_failure, files) if failure is not None]
    killed = [failure for failure in failures if failure.killed_by]
    return min(killed or failures, key=lambda failure: failure.unix_seconds, default=None)


def _read_failure(path: Path) -> Failure | None:
    """None when a full disk has kept it empty or short: the others still count."""
    try:
        return Failure(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def stop_code(signal_name: str) -> int:
    """The exit code of a run that a signal stopped."""
    return int(ExitCode.INTERRUPTED if signal_name == "SIGINT" else ExitCode.TERMINATED)


def leave(exit_code: int) -> NoReturn:
    """End this process now: a destructor that waits for a dead rank would keep it for ever."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):  # nobody reads it any more
                stream.flush()
    os._exit(exit_code)


def killed(rank: int, signal_number: int) -> Failure:
    """A rank that left no word because a signal took it."""
    name = signal.Signals(signal_number).name
    hint = " (the kernel kills the largest process when memory runs out)" if name == "SIGKILL" else ""
    return Failure(
        rank=rank,
        exit_code=ExitCode.TRAINING_FAILED,
        reason=f"rank {rank} was killed by {name}{hint}",
        unix_seconds=time.time(),
        killed_by=name,
    )
