"""One trackio run a segment: a local-first tracker, SQLite files beside the runs and a dashboard that reads them.

`pip install trackio` (MIT). Runs of one `runs_dir` share RUNS_DIR/trackio, or TRACKIO_DIR where that is set; a server
or Space named in the environment (TRACKIO_SPACE_ID, TRACKIO_SERVER_URL) is used unless `tracking.mode=offline`.
A resumed segment is a run of its own in the group: steps that are done again would lie twice in one run.
"""

from __future__ import annotations

import importlib.util
import io
import os
import secrets
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

from conf.choices import TrackingMode
from trainers.bounded import bounded, one_line
from trainers.tracking import Metrics, Tracked, Tracker, comparison, known, untracked, write_note
from trainers.wandb_charts import upload
from trainers.warn import warn

START_TIMEOUT_SECONDS = 15.0
FINISH_TIMEOUT_SECONDS = 20.0
INSTALL = 'pip install "preflight[trackio]", or pip install trackio'
SERVERS = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")


class TrackioTracker:
    """A `trainers.tracking.Tracker`."""

    def __init__(self, run: Any, tracked: Tracked, mode: str, place: str) -> None:
        self.run_id: str | None = run.id
        self.problem: str | None = None
        self._run, self._tracked, self._mode, self._place = run, tracked, mode, place
        self._step = 0
        self._is_finished = False

    def log(self, metrics: Metrics, step: int) -> None:
        """Queued; trackio's own thread writes."""
        self._step = step
        self._try(lambda: self._run.log(known(metrics), step=step), "log")

    def alert(self, title: str, text: str) -> None:
        """On the dashboard, and to TRACKIO_WEBHOOK_URL where that is set."""
        self._try(lambda: self._run.alert(title, text), "send an alert")

    def finish(self, summary: Metrics, exit_code: int = 0) -> None:
        """Both sides of every number, and the table of those that have two."""
        if self._is_finished:
            return
        self._is_finished = True
        both = known(self._tracked.estimate) | known(summary) | {"exit_code": exit_code}
        self._try(lambda: bounded(lambda: self._close(both), FINISH_TIMEOUT_SECONDS), "finish")
        project = self._tracked.plan.tracking.project
        warn(f'trackio: {self._place}; to look: TRACKIO_DIR={self._place} trackio show --project "{project}"')
        write_note(self._tracked, self._mode, self.run_id, self.problem)

    def _close(self, values: dict[str, Any]) -> None:
        import trackio

        rows = [list(row) for row in comparison(values)]
        table = trackio.Table(columns=["name", "estimated", "actual", "ratio"], data=rows)
        self._run.log(values | {"estimated_vs_actual": table}, step=self._step)
        if self._tracked.plan.tracking.artifacts:
            upload(trackio, self._run, self._tracked.run_dir)
        self._run.finish()

    def _try(self, act: Callable[[], object], what: str) -> None:
        """After a first problem nothing is tried again; what trackio prints is kept off stdout."""
        if self.problem:
            return
        try:
            with redirect_stdout(io.StringIO()):
                act()
        except Exception as error:  # noqa: BLE001  SQLite, HTTP or threads: training goes on all the same
            self.problem = f"trackio could not {what}: {one_line(error)}"
            warn(f"{self.problem}; training is not affected")


def start(tracked: Tracked) -> Tracker:
    """A missing package and one that does not start cost a line, not the run."""
    if importlib.util.find_spec("trackio") is None:
        return untracked(tracked, f"tracking=trackio needs the package trackio: {INSTALL}; training goes on untracked")
    if tracked.plan.tracking.mode is TrackingMode.offline:
        for name in SERVERS:
            os.environ.pop(name, None)
    place = os.environ.setdefault("TRACKIO_DIR", str(tracked.run_dir.parent / "trackio"))
    mode = "online" if any(os.environ.get(name) for name in SERVERS) else "offline"
    found: list[Any] = []
    try:
        with redirect_stdout(io.StringIO()):
            bounded(lambda: found.append(_init(tracked)), START_TIMEOUT_SECONDS)
    except Exception as error:  # noqa: BLE001  whatever it is, it is not worth a run
        return untracked(tracked, f"trackio could not start: {one_line(error)}; training goes on untracked")
    warn(f"trackio {mode}: {place}")
    write_note(tracked, mode, found[0].id, None)
    return TrackioTracker(found[0], tracked, mode, place)


def _init(tracked: Tracked) -> Any:
    import trackio

    tracking, name = tracked.plan.tracking, tracked.run_dir.name
    notes = {"notes": tracking.notes, "tags": list(tracking.tags), "job_type": "train"}
    return trackio.init(
        project=tracking.project,
        name=name if tracked.resume_id is None else f"{name}-resumed-{secrets.token_hex(2)}",
        group=tracked.group,
        config={**tracked.config, **known(tracked.estimate), **notes},
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
