"""Where the numbers go besides the run folder: one W&B run a launch, or none.

Training matters more than tracking: nothing here prompts, waits without a bound, or ends a run. Trouble is said once,
kept in `RUN_DIR/tracking.json`, and the run goes on untracked; `metrics.jsonl` has every number anyway.
Offline segments that share an id overwrite each other when synced (github.com/wandb/wandb/issues/2423), so a resume
keeps the id of a run that is on the server and starts a new run, in the same group, otherwise.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from conf.choices import TrackingBackend
from preflight.plan import RunPlan
from preflight.planfile import write_json
from trainers import wandb_server
from trainers.warn import warn

INIT_TIMEOUT_SECONDS = 15.0
FINISH_TIMEOUT_SECONDS = 20.0
TEARDOWN_TIMEOUT_SECONDS = 5.0
MAX_ALERT_TITLE = 63  # characters: W&B's limit
FLUSH_SECONDS = 2.0  # how much of the history a kill can take
Metrics = Mapping[str, float | int | str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoTracker:
    """Takes everything and keeps nothing: `tracking=none`, ranks above 0, or a W&B that did not start."""

    run_id: str | None = None
    problem: str | None = None

    def log(self, metrics: Metrics, step: int) -> None:
        """Nothing to do."""

    def alert(self, title: str, text: str) -> None:
        """Nothing to do."""

    def finish(self, summary: Metrics, exit_code: int = 0) -> None:
        """Nothing to do."""


class WandbTracker:
    """One W&B run. `run_id` belongs into the checkpoint; `problem` says what went wrong, if anything."""

    def __init__(self, run: Any, *, mode: str, run_dir: Path, estimate_flat: Metrics) -> None:
        self.run_id: str | None = run.id
        self.problem: str | None = None
        self.mode = mode
        self._run = run
        self._run_dir = run_dir
        self._estimate = {name: value for name, value in estimate_flat.items() if value is not None}
        self._step = 0
        self._is_finished = False

    def log(self, metrics: Metrics, step: int) -> None:
        """One row; `step` is the optimizer step, the only step there is. None: not measured, left out."""
        self._step = step
        self._try(lambda: self._run.log(_known(metrics), step=step), "log")

    def alert(self, title: str, text: str) -> None:
        """A message to whoever follows the run (W&B sends it by mail or Slack, once synced when offline)."""
        self._try(lambda: self._run.alert(title[:MAX_ALERT_TITLE], text), "send an alert")

    def finish(self, summary: Metrics, exit_code: int = 0) -> None:
        """Summary and the table estimated | actual | ratio, then close within a bounded time; once."""
        if self._is_finished:
            return
        self._is_finished = True
        both = self._estimate | _known(summary)
        folder = str(Path(self._run.dir).parent)
        closed = self._try(lambda: _bounded(lambda: self._close(both, exit_code), FINISH_TIMEOUT_SECONDS), "finish")
        _stop_service(exit_code, by_force=not closed)
        if self.mode == "offline" or self.problem:
            _say(f"W&B files are in {folder}; to upload: wandb sync {folder}")
        else:
            _say(f"W&B run: {self._run.url}")
        _write_note(self._run_dir, self.mode, self.run_id, self.problem)

    def _close(self, values: dict[str, Any], exit_code: int) -> None:
        """Runs in a thread: for a table W&B asks the server who the user is, and waits for the answer."""
        self._run.summary.update(values)
        self._try(lambda: self._log_table(values), "log the table")
        self._run.finish(exit_code=exit_code)

    def _log_table(self, values: dict[str, Any]) -> None:
        import wandb

        rows = [list(row) for row in comparison(values)]
        table = wandb.Table(columns=["name", "estimated", "actual", "ratio"], data=rows)
        self._run.log({"estimated_vs_actual": table}, step=self._step)

    def _try(self, act: Callable[[], object], what: str) -> bool:
        """Whether it was done; after a first problem nothing is tried again."""
        if self.problem:
            return False
        try:
            act()
        except wandb_server.failures() as error:
            if not self.problem:  # else what was given up has come to its end in its thread
                self.problem = f"W&B could not {what}: {_one_line(error)}"
                _say(f"{self.problem}; training is not affected")
            return False
        return True


Tracker = NoTracker | WandbTracker


def make_tracker(
    plan: RunPlan,
    run_dir: Path,
    *,
    config: Mapping[str, Any],
    estimate_flat: Metrics,
    resume_id: str | None,
    rank: int,
    group: str | None = None,
) -> Tracker:
    """Global rank 0 of a tracked plan gets a W&B run with its files in `run_dir/wandb`; everyone else the no-op twin.

    `resume_id` is the id that the checkpoint kept; `group` (default: the run folder's name) holds the segments of a run
    or the rows of a grid together.
    """
    if rank > 0 or plan.tracking.backend is TrackingBackend.none:
        return NoTracker()
    _keep_to_itself(run_dir)
    try:
        mode, why = wandb_server.choose_mode(plan.tracking.mode)
    except wandb_server.failures() as error:  # a setting of the environment that W&B refuses
        return _untracked(run_dir, f"W&B could not start: {_one_line(error)}; training goes on untracked")
    if mode == "disabled":
        return NoTracker()
    problem = None
    attempts: tuple[Literal["online", "offline"], ...] = ("online", "offline") if mode == "online" else ("offline",)
    for attempt in attempts:
        try:
            run = _init(plan, run_dir, attempt, dict(config) | _known(estimate_flat), resume_id, group)
        except wandb_server.failures() as error:
            problem = f"W&B could not start {attempt}: {_one_line(error)}"
            _say(problem)
            continue
        _say(f"W&B {attempt}: {run.url if attempt == 'online' else why or 'metrics stay in the run folder'}")
        _write_note(run_dir, attempt, run.id, problem)
        return WandbTracker(run, mode=attempt, run_dir=run_dir, estimate_flat=estimate_flat)
    _write_note(run_dir, "none", None, problem)
    return NoTracker(problem=problem)


def _untracked(run_dir: Path, problem: str) -> NoTracker:
    _say(problem)
    _write_note(run_dir, "none", None, problem)
    return NoTracker(problem=problem)


def _init(
    plan: RunPlan,
    run_dir: Path,
    mode: Literal["online", "offline"],
    config: dict[str, Any],
    resume_id: str | None,
    group: str | None,
) -> Any:
    import wandb

    tracking = plan.tracking
    goes_on = mode == "online" and resume_id is not None and not _is_unsynced(run_dir, resume_id)
    return wandb.init(
        project=tracking.project,
        entity=tracking.entity,
        id=resume_id if goes_on else secrets.token_hex(4),  # explicit: a stray WANDB_RUN_ID would merge runs
        resume="allow" if goes_on else None,
        name=run_dir.name,
        group=group or run_dir.name,
        job_type="train",
        notes=tracking.notes or None,
        tags=list(tracking.tags) or None,
        dir=str(run_dir),
        mode=mode,
        config=config,
        allow_val_change=True,
        settings=wandb_server.quiet_settings(
            console="off",
            init_timeout=INIT_TIMEOUT_SECONDS,
            finish_timeout=FINISH_TIMEOUT_SECONDS * 0.8,
            x_transaction_log_flush_interval=FLUSH_SECONDS,
        ),
    )


def _is_unsynced(run_dir: Path, run_id: str) -> bool:
    """An offline segment with this id lies here and `wandb sync` has not marked it."""
    folders = list((run_dir / "wandb").glob(f"offline-run-*-{run_id}"))
    return any(not list(folder.glob("*.wandb.synced")) for folder in folders)


def comparison(values: Mapping[str, Any]) -> list[tuple[str, float, float, float | None]]:
    """Rows (leaf, estimated, actual, ratio) for every leaf that both sides have, in the estimate's order."""
    rows = []
    for name, estimated in values.items():
        leaf = name.removeprefix("estimate/")
        actual = values.get(f"actual/{leaf}")
        if leaf != name and isinstance(estimated, int | float) and isinstance(actual, int | float):
            rows.append((leaf, float(estimated), float(actual), actual / estimated if estimated else None))
    return rows


def _keep_to_itself(run_dir: Path) -> None:
    """Artifact staging beside the run, so that `wandb sync` works from any machine and a read-only home does no harm.

    W&B's own crash telemetry reaches for the network even offline, and delays the exit by ten seconds without a route.
    """
    os.environ.setdefault("WANDB_DATA_DIR", str(run_dir / "wandb" / "data"))
    os.environ.setdefault("WANDB_CACHE_DIR", str(run_dir / "wandb" / "cache"))
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


def _bounded(act: Callable[[], object], timeout_seconds: float) -> None:
    """Run `act` in a thread that is given up after a while; its exception comes out here.

    Of any type: once its helper is killed, a call that was given up may end in whatever W&B or asyncio raises then.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001  raised below, unless nobody waits any more
            errors.append(error)

    thread = threading.Thread(target=run, name="tracking", daemon=True)
    thread.start()
    thread.join(timeout_seconds)
    if thread.is_alive():
        raise TimeoutError(f"no end after {timeout_seconds:g} s")
    for error in errors:
        raise error if isinstance(error, wandb_server.failures()) else OSError(repr(error)) from error


def _stop_service(exit_code: int, *, by_force: bool) -> None:
    """End W&B's helper process now: its own exit hook would wait for it without a bound."""
    import wandb

    if by_force:
        wandb_server.kill_service()
    try:
        _bounded(lambda: wandb.teardown(exit_code), TEARDOWN_TIMEOUT_SECONDS)
    except wandb_server.failures():  # it is dead already, or hangs
        wandb_server.kill_service()


def _known(metrics: Metrics) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if value is not None}


def _write_note(run_dir: Path, mode: str, run_id: str | None, problem: str | None) -> None:
    note = {"backend": "wandb", "mode": mode, "run_id": run_id, "problem": problem}
    try:
        write_json({"tracking": note}, run_dir / "tracking.json")
    except OSError as error:
        _say(f"tracking.json was not written: {error}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _say(message: str) -> None:
    warn(message)
