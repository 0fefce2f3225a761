"""What the loop is handed: the plan, where to write, who is listening. `trainers.rank` puts it together."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TextIO

from preflight.plan import RunPlan


class Stop(Protocol):
    """Set by signal handlers, read between steps."""

    requested: str | None  # one of trainers.signals.HANDLED


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
    peak_flops_per_second: float | None  # of all ranks, in the arithmetic of the products; None: unknown
    usd_per_hour: float | None  # of all nodes; None: unknown
    watts: float | None  # of all nodes, at the wall; None: unknown
    usable_bytes: int | None = None  # of one rank's memory, by the budget; None: unknown
    estimate: Mapping[str, float | int | str | None]  # flat `estimate/*`, shown beside the actual numbers
    stop: Stop = field(default_factory=NeverStop)
    progress: TextIO = field(default_factory=lambda: sys.stdout)
