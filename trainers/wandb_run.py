"""One W&B run a launch: its table and charts, its alerts, its files, and a bounded end.

Offline segments that share an id overwrite each other when synced (github.com/wandb/wandb/issues/2423), so a resume
keeps the id of a run that is on the server and starts a new run, in the same group, otherwise.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from trainers import wandb_server
from trainers.bounded import bounded, one_line
from trainers.tracking import Metrics, NoTracker, Tracked, Tracker, comparison, known, untracked, write_note
from trainers.wandb_charts import charts, upload
from trainers.warn import warn

INIT_TIMEOUT_SECONDS = 15.0
FINISH_TIMEOUT_SECONDS = 20.0
TEARDOWN_TIMEOUT_SECONDS = 5.0
UPLOAD_BYTES_PER_SECOND = 5e6  # the end waits that much longer for artifacts that were asked for
FLUSH_SECONDS = 2.0  # how much of the history a kill can take
MAX_ALERT_TITLE = 63  # characters: W&B's limit


class WandbTracker:
    """A `trainers.tracking.Tracker`."""

    def __init__(self, run: Any, tracked: Tracked, mode: str) -> None:
        self.run_id: str | None = run.id
        self.problem: str | None = None
        self.mode = mode
        self._run = run
        self._tracked = tracked
        self._estimate = known(tracked.estimate)
        self._step = 0
        self._is_finished = False

    def log(self, metrics: Metrics, step: int) -> None:
        """Into the history."""
        self._step = step
        self._try(lambda: self._run.log(known(metrics), step=step), "log")

    def alert(self, title: str, text: str) -> None:
        """W&B sends it by mail or Slack, once synced when offline."""
        self._try(lambda: self._run.alert(title[:MAX_ALERT_TITLE], text), "send an alert")

    def finish(self, summary: Metrics, exit_code: int = 0) -> None:
        """Summary, table and charts, artifacts if asked for, then close."""
        if self._is_finished:
            return
        self._is_finished = True
        both = self._estimate | known(summary)
        folder = str(Path(self._run.dir).parent)
        closed = self._try(lambda: bounded(lambda: self._close(both, exit_code), self._patience_seconds()), "finish")
        _stop_service(exit_code, by_force=not closed)
        if self.mode == "offline" or self.problem:
            warn(f"W&B files are in {folder}; to upload: wandb sync {folder}")
        else:
            warn(f"W&B run: {self._run.url}")
        write_note(self._tracked, self.mode, self.run_id, self.problem)

    def _patience_seconds(self) -> float:
        if not self._tracked.plan.tracking.artifacts:
            return FINISH_TIMEOUT_SECONDS
        files = (self._tracked.run_dir / "checkpoints").glob("*.pt")
        return FINISH_TIMEOUT_SECONDS + max((f.stat().st_size for f in files), default=0) / UPLOAD_BYTES_PER_SECOND

    def _close(self, values: dict[str, Any], exit_code: int) -> None:
        """Runs in a thread: for a table W&B asks the server who the user is, and waits for the answer."""
        import wandb

        self._run.summary.update(values)
        self._try(lambda: self._run.log(charts(comparison(values)), step=self._step), "log the table and charts")
        if self._tracked.plan.tracking.artifacts:
            self._try(lambda: upload(wandb, self._run, self._tracked.run_dir), "log the artifacts")
        self._run.finish(exit_code=exit_code)

    def _try(self, act: Callable[[], object], what: str) -> bool:
        """Whether it was done; after a first problem nothing is tried again."""
        if self.problem:
            return False
        try:
            act()
        except Exception as error:  # noqa: BLE001  a helper that was killed ends calls in whatever asyncio raises then
            if not self.problem:  # else what was given up has come to its end in its thread
                self.problem = f"W&B could not {what}: {one_line(error)}"
                warn(f"{self.problem}; training is not affected")
            return False
        return True


def start(tracked: Tracked) -> Tracker:
    """Online when there is a key and an answer, else offline; a W&B that does not start at all is said once."""
    _keep_to_itself(tracked.run_dir)
    try:
        mode, why = wandb_server.choose_mode(tracked.plan.tracking.mode)
    except wandb_server.failures() as error:  # a setting of the environment that W&B refuses
        return untracked(tracked, f"W&B could not start: {one_line(error)}; training goes on untracked")
    if mode == "disabled":
        return NoTracker()
    problem = None
    attempts: tuple[Literal["online", "offline"], ...] = ("online", "offline") if mode == "online" else ("offline",)
    for attempt in attempts:
        try:
            run = _init(tracked, attempt)
        except wandb_server.failures() as error:
            problem = f"W&B could not start {attempt}: {one_line(error)}"
            warn(problem)
            continue
        warn(f"W&B {attempt}: {run.url if attempt == 'online' else why or 'metrics stay in the run folder'}")
        write_note(tracked, attempt, run.id, problem)
        return WandbTracker(run, tracked, attempt)
    write_note(tracked, "none", None, problem)
    return NoTracker(problem=problem)


def _init(tracked: Tracked, mode: Literal["online", "offline"]) -> Any:
    import wandb

    tracking, resume_id = tracked.plan.tracking, tracked.resume_id
    goes_on = mode == "online" and resume_id is not None and not _is_unsynced(tracked.run_dir, resume_id)
    return wandb.init(
        project=tracking.project,
        entity=tracking.entity,
        id=resume_id if goes_on else secrets.token_hex(4),  # explicit: a stray WANDB_RUN_ID would merge runs
        resume="allow" if goes_on else None,
        name=tracked.run_dir.name,
        group=tracked.group,
        job_type="train",
        notes=tracking.notes or None,
        tags=list(tracking.tags) or None,
        dir=str(tracked.run_dir),
        mode=mode,
        config={**tracked.config, **known(tracked.estimate)},
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


def _keep_to_itself(run_dir: Path) -> None:
    """Artifact staging beside the run, so that `wandb sync` works from any machine and a read-only home does no harm.

    W&B's own crash telemetry reaches for the network even offline, and delays the exit by ten seconds without a route.
    """
    os.environ.setdefault("WANDB_DATA_DIR", str(run_dir / "wandb" / "data"))
    os.environ.setdefault("WANDB_CACHE_DIR", str(run_dir / "wandb" / "cache"))
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


def _stop_service(exit_code: int, *, by_force: bool) -> None:
    """End W&B's helper process now: its own exit hook would wait for it without a bound."""
    import wandb

    if by_force:
        wandb_server.kill_service()
    try:
        bounded(lambda: wandb.teardown(exit_code), TEARDOWN_TIMEOUT_SECONDS)
    except Exception:  # noqa: BLE001  it is dead already, or hangs
        wandb_server.kill_service()
