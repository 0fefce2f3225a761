"""How a run ended, as files in its folder: torchrun turns every worker failure into exit 1, these keep the truth."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from preflight import presence
from preflight.errors import ExitCode
from trainers.signals import ORPHAN_SECONDS
from trainers.warn import warn

IN_ORDER = frozenset({ExitCode.STOPPED_AT_BUDGET, ExitCode.INTERRUPTED, ExitCode.TERMINATED})  # checkpoint saved
FAILURES = "failures"  # one file a rank, and one of the agent
NO_ROOM = re.compile(r"failed to map segment|cannot (?:map|allocate|apply)", re.IGNORECASE)  # of the dynamic linker
UNSEEN = "a signal"  # which one only the parent of the rank knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One process that ended badly."""

    rank: int
    exit_code: int
    reason: str
    unix_seconds: float
    killed_by: str | None = None  # the signal's name, when nobody was left to write a reason
    step: int | None = None  # finished ones; None: nobody was left to say
    is_out_of_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended, for when the trainer left no measurements that say so."""

    exit_code: int
    reason: str
    failed_rank: int | None = None
    is_out_of_memory: bool = False


def as_outcome(failure: Failure) -> Outcome:
    """The cause, as the run's end."""
    return Outcome(
        exit_code=failure.exit_code,
        reason=failure.reason,
        failed_rank=failure.rank,
        is_out_of_memory=failure.is_out_of_memory,
    )


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
    presence.forget(run_dir)


def first_failure(run_dir: Path) -> Failure | None:
    """The cause: a rank that was killed outright, else the earliest to fail. Later failures follow from it."""
    files = sorted((run_dir / FAILURES).glob("*.json"))
    failures = [failure for failure in map(_read_failure, files) if failure is not None]
    killed = [failure for failure in failures if failure.killed_by]
    # whose parent saw the signal is told before a neighbour's guess
    return min(killed or failures, key=lambda one: (one.killed_by == UNSEEN, one.unix_seconds), default=None)


def _read_failure(path: Path) -> Failure | None:
    """None when a full disk has kept it empty or short: the others still count."""
    try:
        return Failure(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def not_loaded(rank: int, error: Exception) -> Failure:
    """PyTorch does not even start: an installation that is broken, or no room for its libraries."""
    words = (str(error).strip().splitlines() or [""])[0]
    lacks_room = isinstance(error, MemoryError | SystemError) or NO_ROOM.search(words) is not None
    cure = "ulimit -v unlimited, or more memory" if lacks_room else "pip install --force-reinstall torch"
    told = f"{type(error).__name__}: {words}".rstrip(": ")
    return Failure(
        rank=rank,
        exit_code=ExitCode.WRONG_MACHINE,
        reason=f"rank {rank}: PyTorch cannot be loaded: {told}\n  To fix: {cure}",
        unix_seconds=time.time(),
    )


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


def abandon(run_dir: Path, rank: int, who: str) -> NoReturn:
    """Nobody is left to wait for this rank, and it has had its time to finish the step and save."""
    reason = f"{who}; rank {rank} could not finish its step and save within {ORPHAN_SECONDS:g} s"
    code = ExitCode.TRAINING_FAILED
    failure = Failure(rank=rank, exit_code=code, reason=reason, unix_seconds=time.time())
    write_failure(run_dir, failure, author=f"rank-{rank}")
    os._exit(code)


def killed(rank: int, signal_number: int | None, *, is_out_of_memory: bool = False) -> Failure:
    """A rank that left no word because a signal took it; None: which one only its parent knows."""
    name = UNSEEN if signal_number is None else signal.Signals(signal_number).name
    hint = ""
    if is_out_of_memory:
        hint = ": the kernel ended it because memory ran out"
    elif name in ("SIGKILL", UNSEEN):
        hint = " (the kernel kills the largest process when memory runs out)"
    return Failure(
        rank=rank,
        exit_code=ExitCode.TRAINING_FAILED,
        reason=f"rank {rank} was killed by {name}{hint}",
        unix_seconds=time.time(),
        killed_by=name,
        is_out_of_memory=is_out_of_memory,
    )
