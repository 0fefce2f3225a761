"""Was a processor there when it was wanted? How long the main thread was ready to run while others ran (Linux)."""

from __future__ import annotations

import time
from pathlib import Path

SCHEDSTAT = Path("/proc/self/schedstat")  # nanoseconds on a processor, nanoseconds waiting for one, time slices


class ProcessorMeter:
    """From `start` on. Of a container's own processors, since the kernel counts for the thread itself."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Count from here."""
        self._begin, self._waited = time.perf_counter(), _waited_seconds()

    def wait_fraction(self) -> float | None:
        """None where the kernel does not tell."""
        now, elapsed = _waited_seconds(), time.perf_counter() - self._begin
        if now is None or self._waited is None or elapsed <= 0:
            return None
        return min(1.0, max(0.0, now - self._waited) / elapsed)


def _waited_seconds() -> float | None:
    try:
        return int(SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):  # no Linux, or a kernel without schedstats
        return None
