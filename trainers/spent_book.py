"""Rank 0's line in `RUN_DIR/spent.json`: written again and again, so that a killed run has left its hours too."""

from __future__ import annotations

from pathlib import Path

from preflight.spent import SPENT, Segment, Spent, read_segments, total, write_segments
from trainers.warn import warn

INTERVAL_SECONDS = 30.0  # what a kill can take


class SpentBook:
    """`earlier` is what the segments before this one have used."""

    def __init__(self, run_dir: Path, started_unix: float, *, resume: bool) -> None:
        self.run_dir, self.started_unix = run_dir, started_unix
        found = read_segments(run_dir) if resume else ()
        if found is None:
            warn(f"{run_dir / SPENT} cannot be read: what earlier segments have used is not counted")
        self._others = [one for one in found or () if one.started_unix_seconds != started_unix]
        self.earlier: Spent = total(self._others)
        self._written_seconds = 0.0
        self._is_lost = False

    def note(self, wall_seconds: float, cost_usd: float | None, energy_kwh: float | None, *, now: bool = False) -> None:
        """This segment so far; on the disk every `INTERVAL_SECONDS`, or `now`."""
        if self._is_lost or not (now or wall_seconds - self._written_seconds >= INTERVAL_SECONDS):
            return
        self._written_seconds = wall_seconds
        segment = Segment(
            started_unix_seconds=self.started_unix,
            wall_seconds=wall_seconds,
            cost_usd=cost_usd,
            energy_kwh=energy_kwh,
        )
        try:
            write_segments(self.run_dir, [*self._others, segment])
        except OSError as error:
            self._is_lost = True
            warn(f"{SPENT} cannot be written: {error}; a resumed run will not count this one's hours")
