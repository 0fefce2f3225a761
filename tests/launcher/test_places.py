"""Folders that cannot be written to are told before anything starts, each with one that can."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from conf.choices import DataKind, Tokenizer, TrackingBackend
from launch import main
from launcher.places import closed_places
from preflight.plan import RunPlan
from preflight.verdict.judge import Severity
from tests.conftest import build_plan, replace
from tests.launcher.test_trial import machine


def plan_of(tmp_path: Path, *, runs: str = "runs", data: str = "data/text-mine", prepared: bool = False) -> RunPlan:
    plan = build_plan(model="tiny", card="cpu", runs_dir=str(tmp_path / runs))
    text = replace(plan.data, kind=DataKind.text, name="text-mine", dir=str(tmp_path / data), prepared=prepared)
    return replace(plan, data=text)


def told(plan: RunPlan, *, is_dry: bool = False) -> dict[str, str]:
    return {one.check: f"{one.message} | {one.fix}" for one in closed_places(plan, machine(), is_dry=is_dry)}


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    return tmp_path


def test_closed_places_are_none_when_all_can_be_made(at_home: Path):
    assert told(plan_of(at_home)) == {}


def test_closed_places_names_each_and_one_that_is_open(at_home: Path):
    assert told(plan_of(at_home, runs="file", data="file/deep/text-mine")) == {
        "place.runs_dir": f"runs_dir={at_home}/file, where the run is kept, cannot be made: {at_home}/file is a file"
        f" | runs_dir={at_home}/runs",
        "place.data.dir": f"data.dir={at_home}/file/deep, where text-mine would be prepared, "
        f"cannot be made: {at_home}/file is a file | data.dir={at_home}/data",
    }


def test_closed_places_tells_a_read_only_system_from_a_lack_of_rights(at_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda place, mode: not str(place).startswith(str(at_home)))
    monkeypatch.setenv("HOME", "/elsewhere")
    assert "cannot be made in " + str(at_home) + ": permission denied" in told(plan_of(at_home))["place.data.dir"]
    monkeypatch.setattr(os, "statvfs", lambda place: SimpleNamespace(f_flag=os.ST_RDONLY, f_blocks=1))
    the_word = told(plan_of(at_home))["place.runs_dir"]
    assert the_word.endswith(": read-only file system | runs_dir=/elsewhere/preflight/runs")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="a file system of the kernel's")
def test_a_place_that_keeps_no_files_is_closed_and_not_full(at_home: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["model=tiny", "hw=cpu", "tracking=none", "trainer.n_steps=2", "runs_dir=/proc/nope"]) == 2
    captured = capsys.readouterr()
    told = " ".join((captured.out + captured.err).split())
    assert "runs_dir=/proc/nope, where the run is kept, cannot be made in /proc" in told
    assert "KiB free" not in told


def test_closed_places_lets_prepared_data_be_read_only(at_home: Path):
    assert told(plan_of(at_home, data="file/text-mine", prepared=True)) == {}


def test_closed_places_finds_what_is_in_the_way_of_the_data(at_home: Path):
    (at_home / "data" / "text-mine").mkdir(parents=True)
    assert told(plan_of(at_home)) == {}  # an empty folder is as good as none
    (at_home / "data" / "text-mine" / "thesis.tex").write_text("mine")
    assert f"| mv {at_home}/data/text-mine {at_home}/data/text-mine.old" in told(plan_of(at_home))["place.data.dir"]


def test_closed_places_finds_too_small_a_disk_for_the_tokens(at_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=3 * 2**30))
    plan = plan_of(at_home)
    bytes_ = replace(plan, data=replace(plan.data, n_source_bytes=2 * 2**30))  # two bytes a byte: 4 GiB
    assert "take up to 4.0 GiB" in told(bytes_)["place.data.dir"]
    assert told(replace(bytes_, model=replace(bytes_.model, tokenizer=Tokenizer.gpt2))) == {}  # half as many tokens


def test_closed_places_warns_of_a_trackers_folder(at_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRACKIO_DIR", str(at_home / "file"))
    plan = plan_of(at_home)
    tracked = replace(plan, tracking=replace(plan.tracking, backend=TrackingBackend.trackio))
    (finding,) = closed_places(tracked, machine(), is_dry=False)
    assert (finding.severity, finding.check) == (Severity.warning, "place.tracking")
    assert (told(plan), told(tracked, is_dry=True)) == ({}, {})


def test_closed_places_tells_how_a_run_goes_on_elsewhere(at_home: Path, monkeypatch: pytest.MonkeyPatch):
    folder = at_home / "old" / "run-1"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    monkeypatch.setattr(os, "access", lambda place, mode: "old" not in str(place))
    fix = told(plan_of(at_home, runs="old/run-1"))["place.resume"].partition(" | ")[2]
    assert fix == f"cp -r {folder} {at_home}/runs, then resume={at_home}/runs/run-1"


def test_closed_places_stop_a_launch_and_a_calibration(at_home: Path, capsys: pytest.CaptureFixture[str]):
    words = ["hw=cpu", "model=tiny", "tracking=none", "runs_dir=file/runs", "calibration=off", "trainer.n_steps=2"]
    assert main([*words, "dry_run=true"]) == 0
    assert "where the run is kept" in " ".join(capsys.readouterr().out.split())
    assert main(words) == 2
    assert main([*words, "action=calibrate"]) == 2
    assert f"cannot be made: {at_home}/file is a file. Fix: runs_dir=" in capsys.readouterr().out
