"""What has a run used up, all its segments together? `RUN_DIR/spent.json`, from which a resumed run counts on.

A segment is one launch of the run. Its line is written anew again and again while it trains, so that a segment that is
killed has left its hours and its money too. What is unknown is None, and makes the sum unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from preflight.actual import Actual
from preflight.errors import ConfigError
from preflight.planfile import read_json, write_json

SPENT = "spent.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One launch."""

    started_unix_seconds: float
    wall_seconds: float
    cost_usd: float | None
    energy_kwh: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Sums over segments."""

    wall_seconds: float = 0.0
    cost_usd: float | None = 0.0
    energy_kwh: float | None = 0.0
    n_segments: int = 0


def read_segments(run_dir: Path) -> tuple[Segment, ...] | None:
    """Oldest first; empty before there was one; None when the file cannot be read."""
    path = run_dir / SPENT
    try:
        return read_json(tuple[Segment, ...], path, "segments") if path.is_file() else ()
    except ConfigError:
        return None


def write_segments(run_dir: Path, segments: Sequence[Segment]) -> None:
    """All of them, whole or not at all; OSError when the disk refuses."""
    write_json({"segments": tuple(segments)}, run_dir / SPENT)


def total(segments: Sequence[Segment]) -> Spent:
    """Unknown parts make unknown sums."""
    costs = [segment.cost_usd for segment in segments]
    energies = [segment.energy_kwh for segment in segments]
    return Spent(
        wall_seconds=sum(segment.wall_seconds for segment in segments),
        cost_usd=None if None in costs else sum(cost or 0.0 for cost in costs),
        energy_kwh=None if None in energies else sum(energy or 0.0 for energy in energies),
        n_segments=len(segments),
    )


def remember(run_dir: Path, actual: Actual | None) -> None:
    """Before actual.json is forgotten: what it says of a segment that left no line of its own."""
    if actual is None or actual.wall_seconds is None or read_segments(run_dir) != ():
        return
    segment = Segment(
        started_unix_seconds=0.0,
        wall_seconds=actual.wall_seconds,
        cost_usd=actual.cost_usd,
        energy_kwh=actual.energy_kwh,
    )
    write_segments(run_dir, [segment])
