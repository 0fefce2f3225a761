"""How long does a piece of work take on a device? Medians of rounds that are long enough for the clock.

On a card the host only issues work: rounds are timed by CUDA events, read after a synchronisation; on Apple's GPU the
host waits; on a CPU the work is done when the call returns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

ROUND_SECONDS = 2e-3  # shorter ones are repeated inside a round
MIN_ROUNDS, MAX_ROUNDS = 3, 200


class Clock:
    """Seconds of a call, by what the device understands as time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def median_seconds(self, work: Callable[[], object], budget_seconds: float) -> float:
        """Of one call, from as many rounds as the budget allows, after one that warms up."""
        deadline = time.perf_counter() + budget_seconds
        self.seconds(work, 1)  # kernels are loaded, caches and clocks wake up
        once = max(self.seconds(work, 1), 1e-9)
        n_calls = max(1, min(10_000, round(ROUND_SECONDS / once)))
        rounds: list[float] = []
        while len(rounds) < MIN_ROUNDS or (len(rounds) < MAX_ROUNDS and time.perf_counter() < deadline):
            rounds.append(self.seconds(work, n_calls) / n_calls)
            if time.perf_counter() > deadline + budget_seconds:  # slower than anybody thought: what there is must do
                break
        return statistics.median(rounds)

    def seconds(self, work: Callable[[], object], n_calls: int) -> float:
        """Of `n_calls` calls one after the other."""
        if self.device.type == "cuda":
            return self._event_seconds(work, n_calls)
        self.wait()
        begin = time.perf_counter()
        for _ in range(n_calls):
            work()
        self.wait()
        return time.perf_counter() - begin

    def wait(self) -> None:
        """Until everything issued so far is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def _event_seconds(self, work: Callable[[], object], n_calls: int) -> float:
        """The stream's own time between two marks: launching does not count as long as the queue never runs dry."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(self.device)
        begin.record()
        for _ in range(n_calls):
            work()
        end.record()
        torch.cuda.synchronize(self.device)
        return float(begin.elapsed_time(end)) / 1e3
