"""Which ranks of a run are alive? Each holds a lock in the run's folder that the kernel lets go of when it dies.

A rank that was killed leaves no word, but it leaves its file, unlocked: that is how its neighbours, its launcher and
the next launcher learn of it. A rank that ends by itself, however badly, removes its file.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = "ranks"
NAME = re.compile(r"rank-(\d+)")
LOOK_SECONDS = 0.05


@contextmanager
def present(run_dir: Path, rank: int) -> Iterator[None]:
    """This process is that rank until the end of the block; nothing is kept where the run's folder is not."""
    path = run_dir / FOLDER / f"rank-{rank}"
    descriptor = _hold(path)
    try:
        yield
    finally:
        if descriptor is not None:
            with suppress(OSError):
                path.unlink()
            os.close(descriptor)


def alive(run_dir: Path) -> dict[int, int]:
    """Process by rank, of those on this computer."""
    return {rank: process for rank, process, is_held in _looked_at(run_dir) if is_held}


def gone(run_dir: Path) -> list[int]:
    """Ranks that died without a word."""
    return [rank for rank, _, is_held in _looked_at(run_dir) if not is_held]


def wait_until_all_are_gone(run_dir: Path, seconds: float) -> dict[int, int]:
    """Those that are still there after so many seconds."""
    deadline = time.monotonic() + seconds
    while (left := alive(run_dir)) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    return left


def kill_all(run_dir: Path) -> None:
    """Nothing of a run outlives its launcher."""
    for process in alive(run_dir).values():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def forget(run_dir: Path) -> None:
    """Of an earlier segment."""
    for path in (run_dir / FOLDER).glob("rank-*"):
        path.unlink(missing_ok=True)


def _hold(path: Path) -> int | None:
    """The descriptor that holds the lock; None: no such folder, no locks here, or a disk that is full."""
    try:
        path.parent.mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        return None
    try:
        _lock(descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except (ImportError, OSError):  # Windows, or a network's disk without locks: nobody may take us for dead
        os.close(descriptor)
        path.unlink(missing_ok=True)
        return None
    return descriptor


def _lock(descriptor: int) -> None:
    """Who looks whether we live holds it for a moment."""
    import fcntl

    deadline = time.monotonic() + 1.0
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _looked_at(run_dir: Path) -> Iterator[tuple[int, int, bool]]:
    """(rank, process, whether it holds its lock)."""
    try:
        import fcntl
    except ImportError:  # not POSIX
        return
    for path in sorted((run_dir / FOLDER).glob("rank-*")):
        named = NAME.fullmatch(path.name)
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError:  # it has just left
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = False
        except OSError:
            is_held = True
        process = os.pread(descriptor, 20, 0)
        os.close(descriptor)
        if named and process.isdigit() and path.exists():  # without a number it has not come in yet, or is leaving
            yield int(named[1]), int(process), is_held
