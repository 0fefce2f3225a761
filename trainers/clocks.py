"""How long did it take? Every second since launch.py started by its term, each step, the waiting for data."""

from __future__ import annotations

import statistics
import time
from typing import Any, Protocol

import torch
from torch import Tensor

from trainers.forecast import Pace

N_WARMUP_STEPS = 5  # allocators, caches and clocks settle; not counted in the median when there are more
WARM_UP_SECONDS = 10.0  # of them, after the first: long steps settle in fewer
N_RECENT_STEPS = 200  # what the progress line speaks of
TERMS = ("startup", "compile", "steps", "data_wait", "evaluations", "checkpoints", "data", "shutdown")


class Stopwatch:
    """Every second since launch.py started belongs to exactly one term, so the terms sum to the wall time."""

    def __init__(self, started_unix: float) -> None:
        self.terms_seconds = dict.fromkeys(TERMS, 0.0)
        self._mark = time.perf_counter()
        self.terms_seconds["startup"] = max(0.0, time.time() - started_unix)

    def lap(self, term: str) -> float:
        """What has passed since the last lap was `term`."""
        now = time.perf_counter()
        seconds, self._mark = now - self._mark, now
        self.terms_seconds[term] += seconds
        return seconds

    @property
    def elapsed_seconds(self) -> float:
        """Since launch.py started."""
        return sum(self.terms_seconds.values()) + time.perf_counter() - self._mark


class StepTimer:
    """Seconds of each step: CUDA events on a card, which time without making the host wait, else the clock."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.seconds: list[float] = []
        self.total_seconds = 0.0
        self.pace = Pace()  # of the settled ones
        self._after_first_seconds = 0.0
        self._pending: list[tuple[Any, Any]] = []
        self._begin: Any = None

    def begin(self) -> None:
        """A step begins."""
        self._begin = self._now()

    def end(self) -> None:
        """It has been issued (cuda) or is done."""
        if self.device.type == "mps":
            torch.mps.synchronize()
        self._pending.append((self._begin, self._now()))

    def collect(self) -> None:
        """Read the clocks of the steps so far; call it where the host has waited for the device anyway."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            new = [begin.elapsed_time(end) / 1e3 for begin, end in self._pending]
        else:
            new = [end - begin for begin, end in self._pending]
        self._pending.clear()
        for seconds in new:
            self._note(seconds)

    def _note(self, seconds: float) -> None:
        """The pace is that of settled steps; the first one compiles, whatever it takes."""
        self.seconds.append(seconds)
        self.total_seconds += seconds
        n = len(self.seconds)
        if n > N_WARMUP_STEPS or (n > 1 and self._after_first_seconds > WARM_UP_SECONDS):
            self.pace.add(seconds)
        if n > 1:
            self._after_first_seconds += seconds

    def settled(self) -> list[float]:
        """After the warm-up; all but the first where a run is too short for one."""
        return self.seconds[min(N_WARMUP_STEPS, max(0, len(self.seconds) - 1)) :]

    def median_seconds(self) -> float | None:
        """Of the settled steps."""
        return statistics.median(self.settled()) if self.seconds else None

    def recent_seconds(self) -> float | None:
        """The median of the last steps, at a cost that does not grow with the run."""
        n = len(self.seconds)
        first = max(n - N_RECENT_STEPS, min(N_WARMUP_STEPS, n - 1))
        return statistics.median(self.seconds[first:]) if n else None

    def p90_seconds(self) -> float | None:
        """Of the settled steps: the slow ones."""
        settled = sorted(self.settled())
        return settled[min(len(settled) - 1, int(0.9 * len(settled)))] if settled else None

    def first_step_excess_seconds(self) -> float:
        """Compilation and first-time work: what the first step took beyond an ordinary one."""
        return self.seconds[0] - (self.median_seconds() or 0.0) if len(self.seconds) > 1 else 0.0

    def _now(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class Stream(Protocol):
    """Where training batches come from."""

    def micro_batch(self, step: int, micro_step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""


class TimedStream:
    """A stream, and how long it was waited for. A card that still has work when the batch is there has not waited."""

    def __init__(self, stream: Stream, device: torch.device) -> None:
        self.stream, self.device = stream, device
        self.seconds = 0.0

    def micro_batch(self, step: int, micro_step: int) -> tuple[Tensor, Tensor]:
        """The stream's."""
        begin = time.perf_counter()
        batch = self.stream.micro_batch(step, micro_step)
        if self.device.type != "cuda" or torch.cuda.current_stream(self.device).query():
            self.seconds += time.perf_counter() - begin
        return batch
