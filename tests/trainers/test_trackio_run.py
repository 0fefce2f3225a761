"""trackio as a local-first tracker, read back from the files it leaves."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conf.choices import TrackingBackend
from preflight.plan import RunPlan
from preflight.planfile import write_json
from tests.trainers.wandb_site import fixture_plan, fixture_run_dir, track  # noqa: F401
from trainers import trackio_run
from trainers.tracking import NoTracker

RUN = """
import json, pathlib, sys
from preflight.plan import RunPlan
from preflight.planfile import from_jsonable
from trainers.tracking import make_tracker
run_dir = pathlib.Path(sys.argv[1])
plan = from_jsonable(RunPlan, json.loads((run_dir / "plan.json").read_text())["plan"])
estimate = {"estimate/step_seconds": 2.0, "estimate/mfu": None}
for resume_id in (None, "kept"):
    tracker = make_tracker(plan, run_dir, config={"a": 1}, estimate_flat=estimate, resume_id=resume_id, rank=0)
    for step in (1, 10):
        tracker.log({"train/loss": 5.0 - step / 10, "mfu": None}, step)
    tracker.alert("slower than the bill", "waiting for data")
    tracker.finish({"actual/step_seconds": 2.5, "exit_reason": "done"}, 0)
    tracker.finish({}, 5)

from trackio.sqlite_storage import SQLiteStorage as storage
runs = storage.get_run_records("test")
print(json.dumps([{
    "name": run["name"],
    "is_last": run["id"] == tracker.run_id,
    "rows": storage.get_logs("test", run_id=run["id"]),
    "alerts": [alert["title"] for alert in storage.get_alerts("test", run_id=run["id"])],
    "config": storage.get_run_config("test", run["name"], run_id=run["id"]),
} for run in runs]))
"""


@pytest.fixture(name="trackio_plan")
def fixture_trackio_plan(plan: RunPlan) -> RunPlan:
    return replace(plan, tracking=replace(plan.tracking, backend=TrackingBackend.trackio, group="grid-1"))


@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason='needs pip install "preflight[trackio]"')
def test_trackio_keeps_steps_alerts_and_both_sides_of_the_bill_and_prints_nothing_on_stdout(
    trackio_plan: RunPlan, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRACKIO_DIR", *trackio_run.SERVERS):
        monkeypatch.delenv(name, raising=False)
    kept = replace(trackio_plan, tracking=replace(trackio_plan.tracking, artifacts=True))
    write_json({"plan": kept}, run_dir / "plan.json")
    command = [sys.executable, "-c", RUN, str(run_dir)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    first, second = json.loads(done.stdout)  # nothing else is on stdout
    assert (first["name"], second["is_last"]) == (run_dir.name, True)
    assert second["name"].startswith(f"{run_dir.name}-resumed-")
    for run in (first, second):
        assert [row["step"] for row in run["rows"]] == [1, 10, 10]
        assert run["rows"][0]["train/loss"] == 4.9
        assert (run["rows"][-1]["estimate/step_seconds"], run["rows"][-1]["actual/step_seconds"]) == (2.0, 2.5)
        assert run["rows"][-1]["estimated_vs_actual"]["_value"] == [
            {"name": "step_seconds", "estimated": 2.0, "actual": 2.5, "ratio": 1.25}
        ]
        assert run["alerts"] == ["slower than the bill"]
        assert (run["config"]["_Group"], run["config"]["notes"]) == ("grid-1", "baseline")
    assert (run_dir.parent / "trackio" / "test.db").is_file()
    kept_files = [path for path in (run_dir.parent / "trackio" / "artifacts").rglob("*") if path.is_file()]
    assert (run_dir / "plan.json").read_bytes() in [path.read_bytes() for path in kept_files]
    note = json.loads((run_dir / "tracking.json").read_text())["tracking"]
    assert (note["backend"], note["mode"], note["problem"]) == ("trackio", "offline", None)
    assert "trackio show" in done.stderr


def test_trackio_that_is_not_installed_is_told_with_the_command_that_installs_it(
    trackio_plan: RunPlan, run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    tracker = track(trackio_plan, run_dir)
    assert isinstance(tracker, NoTracker)
    assert 'pip install "preflight[trackio]"' in capsys.readouterr().err
    assert json.loads((run_dir / "tracking.json").read_text())["tracking"]["problem"] == tracker.problem


def test_trackio_that_fails_costs_a_line_and_not_the_run(
    trackio_plan: RunPlan, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        id = "b"

        def log(self, *_: object, **__: object) -> None:
            raise RuntimeError("database is locked")

    tracked = trackio_run.Tracked(plan=trackio_plan, run_dir=run_dir, config={}, estimate={}, resume_id=None, group="g")
    tracker = trackio_run.TrackioTracker(Broken(), tracked, "offline", "/x")
    tracker.log({"train/loss": 1.0}, 1)
    tracker.log({"train/loss": 1.0}, 2)
    assert capsys.readouterr().err.count("database is locked; training is not affected") == 1
    assert tracker.problem == "trackio could not log: database is locked"
