"""W&B with a server: reached or not, a new run or the one of the checkpoint, never a wait without an end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conf.choices import TrackingMode
from preflight.plan import RunPlan
from preflight.planfile import write_json
from tests.trainers.wandb_site import (  # noqa: F401
    Server,
    fixture_plan,
    fixture_run_dir,
    fixture_server,
    records,
    runs,
    track,
)
from trainers import wandb_run, wandb_server
from trainers.bounded import bounded
from trainers.wandb_run import WandbTracker


def test_a_run_is_online_when_there_is_a_key_and_the_server_answers(
    plan: RunPlan, run_dir: Path, server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    tracker = track(plan, run_dir)
    tracker.log({"train/loss": 3.0}, 1)
    tracker.log({"train/loss": 2.0}, 10)
    tracker.finish({"actual/step_seconds": 2.5}, 0)
    assert [(row["_step"], row["train/loss"]) for row in server.history()][:2] == [(1, 3.0), (10, 2.0)]
    run = server.variables("UpsertBucket")[0]
    assert (run["name"], run["project"], run["groupName"], run["notes"]) == (
        tracker.run_id,
        "test",
        run_dir.name,
        "baseline",
    )
    config = json.loads(server.variables("UpsertBucket")[-1]["config"])
    assert config["estimate/step_seconds"]["value"] == 2.0
    assert capfd.readouterr().err.splitlines() == [
        f"W&B online: {server.url}/me/test/runs/{tracker.run_id}",
        f"W&B run: {server.url}/me/test/runs/{tracker.run_id}",
    ]


def test_an_online_resume_continues_the_run_of_the_checkpoint(plan: RunPlan, run_dir: Path, server: Server) -> None:
    tracker = track(plan, run_dir, resume_id="kept1234")
    tracker.finish({}, 0)
    assert tracker.run_id == "kept1234"
    assert server.variables("RunResumeStatus")[0]["name"] == "kept1234"


def test_an_online_resume_of_an_offline_segment_is_a_new_run_until_that_was_synced(
    plan: RunPlan, run_dir: Path, server: Server
) -> None:
    segment = run_dir / "wandb" / "offline-run-20261130_120000-kept1234"
    segment.mkdir(parents=True)
    first = track(plan, run_dir, resume_id="kept1234")
    first.finish({}, 0)
    assert first.run_id != "kept1234"
    (segment / "run-kept1234.wandb.synced").touch()
    second = track(plan, run_dir, resume_id="kept1234")
    second.finish({}, 0)
    assert second.run_id == "kept1234"


def test_a_server_that_hangs_at_the_start_costs_seconds_and_the_run_goes_offline(
    plan: RunPlan,
    run_dir: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(wandb_run, "INIT_TIMEOUT_SECONDS", 1.0)
    server.hangs.set()
    tracker = track(plan, run_dir)
    tracker.finish({}, 0)
    assert isinstance(tracker, WandbTracker)
    assert tracker.mode == "offline"
    assert "could not start online" in capfd.readouterr().err


HANGS_AT_THE_END = """
import json, pathlib, sys, urllib.request
from preflight.plan import RunPlan
from preflight.planfile import from_jsonable
from trainers import tracking, wandb_run
wandb_run.FLUSH_SECONDS, wandb_run.FINISH_TIMEOUT_SECONDS = 0.2, 2.0
run_dir = pathlib.Path(sys.argv[1])
plan = from_jsonable(RunPlan, json.loads((run_dir / "plan.json").read_text())["plan"])
tracker = tracking.make_tracker(plan, run_dir, config={}, estimate_flat={}, resume_id=None, rank=0)
urllib.request.urlopen(sys.argv[2] + "/hang").close()
for step in (1, 2):
    tracker.log({"train/loss": 3.0}, step)
tracker.finish({"actual/step_seconds": 2.5}, 0)
"""


def test_a_server_that_hangs_at_the_end_does_not_keep_the_process(plan: RunPlan, run_dir: Path, server: Server) -> None:
    write_json({"plan": plan}, run_dir / "plan.json")
    command = [sys.executable, "-c", HANGS_AT_THE_END, str(run_dir), server.url]
    begin = time.monotonic()
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert time.monotonic() - begin < 30  # bounded; W&B alone waits for minutes
    (folder,) = runs(run_dir)
    assert "Traceback" not in done.stderr
    online, gave_up, files = [line for line in done.stderr.splitlines() if line.startswith("W&B ")]
    assert online.startswith("W&B online: ")
    assert gave_up == "W&B could not finish: no end after 2 s; training is not affected"
    assert files.endswith(f"to upload: wandb sync {folder}")
    assert [row["step"] for row in records(folder, "history")] == [{"num": 1}]


def test_choose_mode_asks_for_no_key_that_is_not_there(run_dir: Path) -> None:
    for mode in (TrackingMode.auto, TrackingMode.online):
        assert wandb_server.choose_mode(mode) == ("offline", "no API key (wandb login)")


def test_choose_mode_is_offline_when_nothing_answers(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    mode, why = wandb_server.choose_mode(TrackingMode.auto)
    assert mode == "offline"
    assert "http://127.0.0.1:9 does not answer" in why


def test_choose_mode_is_online_with_a_key_in_netrc_and_a_server(
    run_dir: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    host = server.url.removeprefix("http://")
    (run_dir.parent / "home" / ".netrc").write_text(f"machine {host} login user password {'0' * 40}\n")
    assert wandb_server.choose_mode(TrackingMode.auto) == ("online", "")


@pytest.mark.parametrize(("value", "mode"), [("offline", "offline"), ("disabled", "disabled")])
def test_choose_mode_follows_the_environment_only_when_auto(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, value: str, mode: str
) -> None:
    monkeypatch.setenv("WANDB_MODE", value)
    assert wandb_server.choose_mode(TrackingMode.auto) == (mode, f"WANDB_MODE={value}")
    assert wandb_server.choose_mode(TrackingMode.online)[1] == "no API key (wandb login)"


def test_a_server_that_accepts_and_says_nothing_does_not_answer() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not wandb_server.answers(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.2)


def test_what_a_bounded_call_raises_comes_out_of_it() -> None:
    def breaks() -> None:
        raise RuntimeError("loop is closed")

    with pytest.raises(RuntimeError, match="loop is closed"):
        bounded(breaks, 1.0)
