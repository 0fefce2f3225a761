"""W&B as its users expect, read back from the files it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.choices import TrackingBackend, TrackingMode
from preflight.plan import RunPlan
from preflight.planfile import write_json
from tests.trainers.wandb_site import fixture_plan, fixture_run_dir, inspect, records, runs, track  # noqa: F401
from trainers import tracking
from trainers.bounded import bounded
from trainers.tracking import NoTracker, comparison
from trainers.wandb_run import WandbTracker


def test_make_tracker_writes_an_offline_run_that_reads_back_whole(
    plan: RunPlan, run_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tracker = track(plan, run_dir)
    assert isinstance(tracker, WandbTracker)
    for step in (1, 10, 20):
        tracker.log({"train/loss": 5.0 - step / 10, "mfu": None}, step)
    tracker.finish({"actual/step_seconds": 2.5, "actual/val_loss": 1.5, "exit_reason": "done"}, 0)

    (folder,) = runs(run_dir)
    run = json.loads(inspect(folder, "-summary"))
    assert run["run_id"] == tracker.run_id
    assert (run["project"], run["name"], run["notes"], run["tags"]) == (
        "test",
        run_dir.name,
        "baseline",
        ["small", "cpu"],
    )
    assert (run["state"], run["exit_code"], run["console"]) == ("finished", 0, [])
    assert run["config"]["name"] == "tiny"
    assert run["config"]["estimate/step_seconds"] == 2.0
    assert "estimate/mfu" not in run["config"]
    summary = run["summary"]
    assert (summary["estimate/step_seconds"], summary["actual/step_seconds"]) == (2.0, 2.5)
    assert (summary["train/loss"], summary["exit_reason"]) == (3.0, "done")
    table = json.loads((folder / "files" / summary["estimated_vs_actual"]["path"]).read_text())
    assert table == {
        "columns": ["name", "estimated", "actual", "ratio"],
        "data": [["step_seconds", 2.0, 2.5, 1.25]],
    }
    assert records(folder, "run")[0]["run_group"] == run_dir.name
    assert f"wandb sync {folder}" in capfd.readouterr().err
    note = json.loads((run_dir / "tracking.json").read_text())["tracking"]
    assert note == {"backend": "wandb", "mode": "offline", "run_id": tracker.run_id, "problem": None}


def test_history_has_one_step_that_only_grows(plan: RunPlan, run_dir: Path) -> None:
    tracker = track(plan, run_dir)
    tracker.log({"train/loss": 3.0}, 10)
    tracker.log({"val/loss": 3.5}, 10)
    tracker.log({"train/loss": 2.0}, 20)
    tracker.finish({}, 0)
    steps = [row["step"]["num"] for row in records(runs(run_dir)[0], "history")]
    assert steps == sorted(set(steps))
    assert steps[:2] == [10, 20]


def test_nothing_is_left_in_the_home_folder(plan: RunPlan, run_dir: Path) -> None:
    tracker = track(plan, run_dir)
    tracker.finish({"actual/step_seconds": 2.5}, 0)
    assert list((run_dir.parent / "home").rglob("*")) == []


def test_a_failed_run_is_marked_as_failed(plan: RunPlan, run_dir: Path) -> None:
    tracker = track(plan, run_dir)
    tracker.finish({}, 5)
    tracker.finish({}, 0)  # the last word has been said
    run = json.loads(inspect(runs(run_dir)[0], "-summary"))
    assert (run["state"], run["exit_code"]) == ("failed", 5)


def test_other_ranks_and_untracked_plans_get_the_no_op_twin(plan: RunPlan, run_dir: Path) -> None:
    untracked = replace(plan, tracking=replace(plan.tracking, backend=TrackingBackend.none))
    for tracker in (track(plan, run_dir, rank=1), track(untracked, run_dir)):
        assert isinstance(tracker, NoTracker)
        tracker.log({"train/loss": 1.0}, 1)
        tracker.finish({}, 0)
    assert list(run_dir.iterdir()) == []


def test_an_offline_resume_is_a_new_run_of_the_same_group(plan: RunPlan, run_dir: Path) -> None:
    first = track(plan, run_dir)
    first.finish({}, 0)
    second = track(plan, run_dir, resume_id=first.run_id)
    second.finish({}, 0)
    assert first.run_id != second.run_id
    assert len(runs(run_dir)) == 2
    assert {records(folder, "run")[0]["run_group"] for folder in runs(run_dir)} == {run_dir.name}


def test_a_stray_run_id_in_the_environment_does_not_merge_runs(
    plan: RunPlan, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", "stray")
    tracker = track(plan, run_dir)
    tracker.finish({}, 0)
    assert tracker.run_id != "stray"


def test_wandb_that_does_not_start_is_said_once_and_training_goes_on(
    plan: RunPlan, run_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import wandb

    def fail(**_: Any) -> None:
        raise wandb.errors.UsageError("no\nway")

    monkeypatch.setattr(wandb, "init", fail)
    tracker = track(plan, run_dir)
    assert tracker == NoTracker(problem="W&B could not start offline: no way")
    assert capfd.readouterr().err.count("no way") == 1
    assert json.loads((run_dir / "tracking.json").read_text())["tracking"]["problem"] == tracker.problem


DIES_IN_MID_RUN = """
import json, pathlib, sys, time
from preflight.plan import RunPlan
from preflight.planfile import write_json
from preflight.planfile import from_jsonable
from trainers import tracking, wandb_server
run_dir = pathlib.Path(sys.argv[1])
plan = from_jsonable(RunPlan, json.loads((run_dir / "plan.json").read_text())["plan"])
tracker = tracking.make_tracker(plan, run_dir, config={}, estimate_flat={}, resume_id=None, rank=0)
tracker.log({"train/loss": 1.0}, 1)
wandb_server.kill_service()
for step in range(2, 20):
    tracker.log({"train/loss": 1.0}, step)
    time.sleep(0.01)
tracker.finish({"actual/step_seconds": 2.5}, 0)
print("trained")
"""


def test_a_wandb_that_dies_in_mid_run_is_said_once_and_training_goes_on(plan: RunPlan, run_dir: Path) -> None:
    write_json({"plan": plan}, run_dir / "plan.json")
    command = [sys.executable, "-c", DIES_IN_MID_RUN, str(run_dir)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "trained\n"
    offline, died, files = done.stderr.splitlines()
    assert "W&B offline" in offline
    assert "training is not affected" in died
    assert "wandb sync" in files


def test_bounded_gives_up_and_says_after_how_long() -> None:
    release = threading.Event()
    with pytest.raises(TimeoutError, match=r"no end after 0.05 s"):
        bounded(release.wait, 0.05)
    release.set()


def test_comparison_pairs_equal_leaves_and_leaves_a_ratio_of_nothing_unknown() -> None:
    values = {
        "estimate/step_seconds": 2.0,
        "estimate/step_seconds_low": 1.0,
        "estimate/cost_usd": 0.0,
        "actual/step_seconds": 3,
        "actual/cost_usd": 0.5,
        "actual/train_loss": 1.0,
    }
    assert comparison(values) == [("step_seconds", 2.0, 3.0, 1.5), ("cost_usd", 0.0, 0.5, None)]


@pytest.mark.parametrize(
    "setting", ["WANDB_MODE=garbage", "WANDB_SILENT=banana", "WANDB_INIT_TIMEOUT=x", "WANDB_BASE_URL=notaurl"]
)
@pytest.mark.parametrize("mode", ["auto", "offline"])
def test_setting_that_wandb_refuses_is_said_once_and_the_run_goes_on_untracked(
    plan: RunPlan,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    setting: str,
    mode: str,
) -> None:
    name, value = setting.split("=")
    monkeypatch.setenv(name, value)
    tracker = track(replace(plan, tracking=replace(plan.tracking, mode=TrackingMode[mode])), run_dir)
    tracker.finish({}, 0)
    if setting != "WANDB_MODE=garbage" or mode == "auto":  # a mode of the plan's is stronger than the environment's
        assert isinstance(tracker, NoTracker)
        assert capsys.readouterr().err.count("W&B could not start") == 1
    assert (run_dir / "tracking.json").is_file()


def test_note_that_cannot_be_written_is_said(plan: RunPlan, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = run_dir / "absent"
    tracked = tracking.Tracked(plan=plan, run_dir=absent, config={}, estimate={}, resume_id=None, group="g")
    tracking.write_note(tracked, "offline", None, None)
    assert "tracking.json was not written" in capsys.readouterr().err


def test_an_alert_is_in_the_run(plan: RunPlan, run_dir: Path) -> None:
    tracker = track(plan, run_dir)
    tracker.alert("slower than the bill " * 9, "19 h instead of 6 h: waiting for data")
    tracker.finish({}, 0)
    (alert,) = records(runs(run_dir)[0], "alert")
    assert alert["title"] == ("slower than the bill " * 9)[:63]
    assert alert["text"] == "19 h instead of 6 h: waiting for data"


def test_a_run_holds_its_charts_its_group_and_the_files_it_was_asked_to_keep(plan: RunPlan, run_dir: Path) -> None:
    (run_dir / "plan.json").write_text("{}")
    (run_dir / "checkpoints").mkdir()
    for step in (1, 2):
        (run_dir / "checkpoints" / f"step_{step:08d}.pt").write_bytes(b"x" * step)
    kept = replace(plan, tracking=replace(plan.tracking, artifacts=True, group="grid-1"))
    estimate = {"estimate/step_seconds": 2.0, "estimate/wall_steps_seconds": 8.0, "estimate/peak_device_bytes": 2**30}
    tracker = track(kept, run_dir, estimate_flat=estimate)
    tracker.finish({"actual/step_seconds": 2.5, "actual/wall_steps_seconds": 9.0, "actual/peak_device_bytes": 2**31})

    (folder,) = runs(run_dir)
    assert records(folder, "run")[0]["run_group"] == "grid-1"
    panels = {name: value for update in records(folder, "config") for name, value in update["update"].items()}
    assert {name.removeprefix("_wandb.visualize.") for name in panels} == {
        "charts/actual_over_estimated",
        "charts/wall_time",
        "charts/peak_memory",
    }
    table = next(folder.rglob("wall_time_table*.json"))
    assert json.loads(table.read_text())["data"] == [["steps (estimated)", 8.0], ["steps (actual)", 9.0]]
    artifacts = {record["type"]: record for record in records(folder, "artifact")}
    assert [entry["path"] for entry in artifacts["run"]["manifest"]["contents"]] == ["plan.json"]
    assert [entry["path"] for entry in artifacts["model"]["manifest"]["contents"]] == ["step_00000002.pt"]


def test_nothing_is_kept_elsewhere_unless_it_was_asked_for(plan: RunPlan, run_dir: Path) -> None:
    (run_dir / "plan.json").write_text("{}")
    tracker = track(plan, run_dir)
    tracker.finish({}, 0)
    assert {record["type"] for record in records(runs(run_dir)[0], "artifact")} <= {"run_table"}
