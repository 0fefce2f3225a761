"""Signals become a flag that the loop reads between steps; a dead parent becomes a signal, and a term."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

PARENT_VARIABLE = "PREFLIGHT_PARENT_PID"  # set by whoever starts us, so that a parent that died early is noticed
LAUNCHER_VARIABLE = "PREFLIGHT_LAUNCHER_PID"  # launch.py, also where the parent is torchrun's agent
PR_SET_PDEATHSIG = 1  # linux/prctl.h
HANDLED = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")  # SIGHUP: the terminal is gone
LAUNCHER_KILLED = "launch.py was killed"
AGENT_KILLED = "torchrun was killed"
ORPHAN_SECONDS = 4.0  # to finish the step and save when nobody is left to wait for it
LOOK_SECONDS = 0.25


def handled() -> list[signal.Signals]:
    """Those that this system has and that nobody ignores for us: `nohup` ignores SIGHUP, which must stay so."""
    here = [signal.Signals[name] for name in HANDLED if hasattr(signal, name)]  # Windows lacks two
    return [one for one in here if one.name != "SIGHUP" or signal.getsignal(one) is not signal.SIG_IGN]


@contextmanager
def held_back() -> Iterator[None]:
    """Signals wait until the end of the block; a process that is started inside begins with them waiting."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, handled())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_through() -> None:
    """The handlers stand: now the signals that were held back by whoever started us."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled())


class StopRequest:
    """`requested` is the name of the first signal that asked this process to stop, or who was killed, or None."""

    def __init__(self) -> None:
        self.requested: str | None = None
        self._parent = os.getppid()

    def install(self) -> None:
        """Take over the handled signals; the second SIGINT of an impatient user still only sets the flag."""
        for number in handled():
            signal.signal(number, self._handle)
        let_through()

    def watch(self, at_the_end: Callable[[str], None]) -> None:
        """Look after parent and launcher from a thread; when one is gone for ORPHAN_SECONDS, call `at_the_end`.

        A rank that waits in a collective for a neighbour that is gone too would not come to its handlers.
        """
        threading.Thread(target=self._watch, args=(at_the_end,), name="parent-watch", daemon=True).start()

    def _watch(self, at_the_end: Callable[[str], None]) -> None:
        while (killed := self._killed()) is None:
            time.sleep(LOOK_SECONDS)
        self.requested = self.requested or killed
        time.sleep(ORPHAN_SECONDS)
        at_the_end(killed)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = self.requested or self._killed() or signal.Signals(number).name

    def _killed(self) -> str | None:
        """Which of those above us is gone."""
        launcher = os.environ.get(LAUNCHER_VARIABLE, "")
        if launcher.isdecimal() and not is_running(int(launcher)):
            return LAUNCHER_KILLED
        return AGENT_KILLED if os.getppid() != self._parent else None


def is_running(process: int) -> bool:
    """A process that is dead and was not yet waited for is not (Linux; elsewhere it counts until then)."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return True


def stop_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent dies, so that no rank outlives its launcher (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    expected = os.environ.get(PARENT_VARIABLE, "")
    if expected.isdecimal() and os.getppid() != int(expected):
        os.kill(os.getpid(), signal.SIGTERM)
