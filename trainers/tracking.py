"""Where the numbers go besides the run folder: W&B, trackio, or nowhere.

Training matters more than tracking: nothing here prompts, waits without a bound, or ends a run. Trouble is said once,
kept in `RUN_DIR/tracking.json`, and the run goes on untracked; `metrics.jsonl` has every number anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from conf.choices import TrackingBackend
from preflight.plan import RunPlan
from preflight.planfile import write_json
from trainers.warn import warn

Metrics = Mapping[str, float | int | str | None]


class Tracker(Protocol):
    """One tracked run. `run_id` belongs into the checkpoint; `problem` says what went wrong, if anything."""

    run_id: str | None
    problem: str | None

    def log(self, metrics: Metrics, step: int) -> None:
        """One row; `step` is the optimizer step, the only step there is. None: not measured, left out."""

    def alert(self, title: str, text: str) -> None:
        """A message to whoever follows the run."""

    def finish(self, summary: Metrics, exit_code: int = 0) -> None:
        """The last numbers, estimated beside actual, then close within a bounded time; once."""


@dataclass(slots=True, kw_only=True)
class NoTracker:
    """Takes everything and keeps nothing: `tracking=none`, ranks above 0, or a tracker that did not start."""

    run_id: str | None = None
    problem: str | None = None

    def log(self, metrics: Metrics, step: int) -> None:
        """Nothing to do."""

    def alert(self, title: str, text: str) -> None:
        """Nothing to do."""

    def finish(self, summary: Metrics, exit_code: int = 0) -> None:
        """Nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """What a tracker is told of the run at its start."""

    plan: RunPlan
    run_dir: Path
    config: Mapping[str, Any]
    estimate: Metrics
    resume_id: str | None  # the id that the checkpoint kept
    group: str  # segments of one run, or the rows of a grid


def make_tracker(
    plan: RunPlan,
    run_dir: Path,
    *,
    config: Mapping[str, Any],
    estimate_flat: Metrics,
    resume_id: str | None,
    rank: int,
) -> Tracker:
    """Global rank 0 of a tracked plan gets a run of its tracker; everyone else the no-op twin.

    `tracking.group` (default: the run folder's name) holds the segments of a run or the rows of a grid together.
    """
    if rank > 0 or plan.tracking.backend is TrackingBackend.none:
        return NoTracker()
    tracked = Tracked(
        plan=plan,
        run_dir=run_dir,
        config=config,
        estimate=estimate_flat,
        resume_id=resume_id,
        group=plan.tracking.group or run_dir.name,
    )
    return _starter(plan.tracking.backend)(tracked)


def _starter(backend: TrackingBackend) -> Callable[[Tracked], Tracker]:
    """Imports only what was asked for."""
    if backend is TrackingBackend.trackio:
        from trainers.trackio_run import start as start_trackio

        return start_trackio
    from trainers.wandb_run import start as start_wandb

    return start_wandb


def untracked(tracked: Tracked, problem: str) -> NoTracker:
    """Said and noted; the run goes on."""
    warn(problem)
    write_note(tracked, "none", None, problem)
    return NoTracker(problem=problem)


def write_note(tracked: Tracked, mode: str, run_id: str | None, problem: str | None) -> None:
    """`tracking.json`, which the ledger's line takes up."""
    note = {"backend": tracked.plan.tracking.backend.name, "mode": mode, "run_id": run_id, "problem": problem}
    try:
        write_json({"tracking": note}, tracked.run_dir / "tracking.json")
    except OSError as error:
        warn(f"tracking.json was not written: {error}")


def known(metrics: Metrics) -> dict[str, Any]:
    """What was measured."""
    return {name: value for name, value in metrics.items() if value is not None}


def comparison(values: Mapping[str, Any]) -> list[tuple[str, float, float, float | None]]:
    """Rows (leaf, estimated, actual, ratio) for every leaf that both sides have, in the estimate's order."""
    rows = []
    for name, estimated in values.items():
        leaf = name.removeprefix("estimate/")
        actual = values.get(f"actual/{leaf}")
        if leaf != name and isinstance(estimated, int | float) and isinstance(actual, int | float):
            rows.append((leaf, float(estimated), float(actual), actual / estimated if estimated else None))
    return rows
