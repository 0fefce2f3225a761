"""How a run ended, as files in its folder: torchrun turns every worker failure into exit 1, these keep the truth."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from preflight.errors import ExitCode

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
    folder.mkdir(exist_ok=True)
    (folder / f"{author}.json").write_text(json.dumps(asdict(failure)) + "\n")


def clear_failures(run_dir: Path) -> None:
    """Forget the failures of an earlier segment before resuming."""
    for path in (run_dir / FAILURES).glob("*.json"):
        path.unlink()


def first_failure(run_dir: Path) -> Failure | None:
    """The cause: a rank that was killed outright, else the earliest to fail. Later failures follow from it."""
    failures = [Failure(**json.loads(path.read_text())) for path in sorted((run_dir / FAILURES).glob("*.json"))]
    killed = [failure for failure in failures if failure.killed_by]
    return min(killed or failures, key=lambda failure: failure.unix_seconds, default=None)


def leave(exit_code: int) -> NoReturn:
    """End this process now: a destructor that waits for a dead rank would keep it for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
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
