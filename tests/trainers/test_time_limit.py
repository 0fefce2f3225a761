"""Whose limit is the earliest, and how does Slurm tell? Its commands are played by small programs."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path

import pytest

from preflight.plan import LauncherPlan
from trainers.time_limit import time_limit

NO_LIMIT = LauncherPlan(grace_seconds=60.0)
NOW = 1_796_040_000.0


def ask(environ: dict[str, str], launcher: LauncherPlan = NO_LIMIT) -> tuple[float, str] | None:
    return time_limit(launcher, environ, started_unix=NOW - 100.0, now_unix=NOW)


def play(folder: Path, name: str, script: str) -> dict[str, str]:
    """A program of that name, found before any other."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"}


def test_time_limit_is_none_when_nobody_sets_one():
    assert ask({}) is None


def test_time_limit_counts_given_hours_from_the_launch():
    limit = ask({}, LauncherPlan(grace_seconds=60.0, time_limit_hours=12.0))
    assert limit == (NOW - 100.0 + 43_200.0, "launcher.time_limit_hours=12")


def test_time_limit_takes_slurms_word_from_the_environment():
    limit = ask({"SLURM_JOB_ID": "77", "SLURM_JOB_END_TIME": str(int(NOW) + 600)})
    assert limit == (NOW + 600.0, "the time limit of Slurm job 77")


def test_time_limit_is_the_earlier_of_two():
    environ = {"SLURM_JOB_ID": "77", "SLURM_JOB_END_TIME": str(int(NOW) + 600)}
    limit = ask(environ, LauncherPlan(grace_seconds=60.0, time_limit_hours=0.1))
    assert limit is not None
    assert limit[1] == "launcher.time_limit_hours=0.1"


def test_time_limit_asks_scontrol(tmp_path: Path):
    line = "JobId=77 JobName=x StartTime=2026-11-30T12:00:00 EndTime=2026-11-30T14:30:00 Deadline=N/A"
    environ = play(tmp_path, "scontrol", f'test "$*" = "show job -o 77" && echo "{line}"')
    limit = ask(environ)
    assert limit is not None
    assert limit[0] == datetime.fromisoformat("2026-11-30T14:30:00").timestamp()


@pytest.mark.parametrize(("left", "seconds"), [("1-02:00:30", 93_630.0), ("2:00:00", 7200.0), ("4:05", 245.0)])
def test_time_limit_asks_squeue_when_scontrol_does_not_know(tmp_path: Path, left: str, seconds: float):
    play(tmp_path, "scontrol", 'echo "JobId=77 EndTime=Unknown"')
    limit = ask(play(tmp_path, "squeue", f"echo {left}"))
    assert limit is not None
    assert limit[0] == NOW + seconds


@pytest.mark.parametrize("script", ["echo UNLIMITED", "exit 1", "echo"])
def test_time_limit_is_none_when_slurm_has_none_or_fails(tmp_path: Path, script: str):
    play(tmp_path, "scontrol", "exit 1")
    assert ask(play(tmp_path, "squeue", script)) is None


def test_time_limit_does_not_wait_for_a_controller_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trainers.time_limit.ASK_SECONDS", 0.05)
    play(tmp_path, "scontrol", "exec sleep 5")
    begin = time.perf_counter()
    assert ask(play(tmp_path, "squeue", "exec sleep 5")) is None
    assert time.perf_counter() - begin < 4
