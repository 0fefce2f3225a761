"""What the loop is handed: the plan, where to write, who is listening. `trainers.worker` puts it together."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TextIO

from preflight.plan import RunPlan


class Tracker(Protocol):
    """Where numbers go besides the run folder (trainers.tracking); rank 0 alone calls it."""

    run_id: str | None  # kept in checkpoints

    def log(self, metrics: Mapping[str, float | int | None], step: int) -> None:
        """Numbers of one step."""

    def finish(self, summary: Mapping[str, float | int | str | None]) -> None:
        """The run is over; no more numbers."""


class Stop(Protocol):
    """Set by signal handlers, read between steps."""

    requested: str | None  # SIGTERM | SIGINT | SIGUSR1


class NoTracker:
    """Nobody listens."""

    run_id: str | None = None

    def log(self, metrics: Mapping[str, float | int | None], step: int) -> None:
        """Nothing."""

    def finish(self, summary: Mapping[str, float | int | str | None]) -> None:
        """Nothing."""


class NeverStop:
    """Nobody asks."""

    requested: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training run as one rank sees it."""

    plan: RunPlan
    run_dir: Path
    started_unix: float  # when launch.py started
    resume: bool  # from the newest sound checkpoint of run_dir
    flops_per_step: float  # model FLOPs of all ranks
    peak_flops_per_second: float | None  # of all ranks, at the plan's precision; None: unknown
    usd_per_hour: float | None  # of all nodes; None: unknown
    tracker: Tracker = field(default_factory=NoTracker)
    stop: Stop = field(default_factory=NeverStop)
    progress: TextIO = field(default_factory=lambda: sys.stdout)
