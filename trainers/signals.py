"""Signals become a flag that the loop reads between steps; a dead parent becomes a signal."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import FrameType

PARENT_VARIABLE = "PREFLIGHT_PARENT_PID"  # set by whoever starts us, so that a parent that died early is noticed
PR_SET_PDEATHSIG = 1  # linux/prctl.h
HANDLED = ("SIGTERM", "SIGINT", "SIGUSR1")


class StopRequest:
    """`requested` is the name of the first signal that asked this process to stop, or None."""

    def __init__(self) -> None:
        self.requested: str | None = None

    def install(self) -> None:
        """Take over the handled signals; the second SIGINT of an impatient user still only sets the flag."""
        for name in HANDLED:
            if hasattr(signal, name):  # SIGUSR1 is missing on Windows
                signal.signal(getattr(signal, name), self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = self.requested or signal.Signals(number).name


def stop_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent dies, so that no rank outlives its launcher (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    expected = os.environ.get(PARENT_VARIABLE)
    if expected is not None and os.getppid() != int(expected):
        os.kill(os.getpid(), signal.SIGTERM)
