"""Signals become a flag that the loop reads between steps; a dead parent becomes a signal."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PARENT_VARIABLE = "PREFLIGHT_PARENT_PID"  # set by whoever starts us, so that a parent that died early is noticed
PR_SET_PDEATHSIG = 1  # linux/prctl.h
HANDLED = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")  # SIGHUP: the terminal is gone


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
    """`requested` is the name of the first signal that asked this process to stop, or None."""

    def __init__(self) -> None:
        self.requested: str | None = None

    def install(self) -> None:
        """Take over the handled signals; the second SIGINT of an impatient user still only sets the flag."""
        for number in handled():
            signal.signal(number, self._handle)
        let_through()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = self.requested or signal.Signals(number).name


def stop_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent dies, so that no rank outlives its launcher (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    expected = os.environ.get(PARENT_VARIABLE, "")
    if expected.isdecimal() and os.getppid() != int(expected):
        os.kill(os.getpid(), signal.SIGTERM)
