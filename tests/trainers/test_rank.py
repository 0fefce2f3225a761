"""A rank that fails says why in one line, whatever the disk is like."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from preflight.errors import ConfigError, Problem
from preflight.plan import RunPlan
from preflight.planfile import to_jsonable
from trainers import checkpoint, meters, pretrain
from trainers.blame import failure_of
from trainers.job import Job
from trainers.outcome import first_failure, not_loaded
from trainers.pretrain import train
from trainers.rank import run_rank
from trainers.signals import LAUNCHER_VARIABLE, StopRequest


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_failure_is_one_line_on_a_full_disk_and_a_traceback_for_the_unforeseen(capsys: pytest.CaptureFixture[str]):
    failure = failure_of(1, 7, OSError(errno.ENOSPC, "No space left on device", "x"))
    assert (failure.exit_code, failure.rank) == (5, 1)
    assert failure.reason.splitlines() == ["rank 1, after step 7: OSError: [Errno 28] No space left on device: 'x'"]
    assert capsys.readouterr().err == ""
    assert failure_of(0, 0, ConfigError([])).exit_code == 2
    failure_of(0, 0, KeyError("x"))
    assert "KeyError: 'x'" in capsys.readouterr().err


@pytest.mark.parametrize("has_launcher", [False, True])
def test_failure_is_said_by_the_launcher_where_there_is_one(
    has_launcher: bool,
    small_plan: Callable[..., RunPlan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def fail(job: Job) -> None:
        raise ConfigError([Problem(path="data.field", value="text", message="no such field", fix="data.field=body")])

    monkeypatch.setattr(pretrain, "train", fail)
    monkeypatch.delenv(LAUNCHER_VARIABLE, raising=False)
    if has_launcher:
        monkeypatch.setenv(LAUNCHER_VARIABLE, "1")
    running = dict.fromkeys(("flops_per_step", "peak_flops_per_second", "usd_per_hour", "watts"))
    document = {"plan": to_jsonable(small_plan()), "running": running, "estimate": {}}
    outcome = run_rank(document, tmp_path, StopRequest(), started_unix=0.0, resume=False, progress=sys.stdout)
    assert (outcome.exit_code, "no such field" in outcome.reason) == (2, True)
    assert capsys.readouterr().err.count("no such field") == (0 if has_launcher else 1)


def test_failure_is_said_where_a_full_disk_keeps_it_from_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv(LAUNCHER_VARIABLE, "1")
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "failures").write_text("in the way")
    run_rank({}, tmp_path, StopRequest(), started_unix=0.0, resume=False, progress=sys.stdout)
    assert capsys.readouterr().err.count("PyTorch cannot be loaded") == 1


def test_train_tells_the_first_cause_when_the_disk_refuses_every_word(
    small_plan: Callable[..., RunPlan],
    make_job: Callable[..., Job],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def torn(document: object, path: Path, *, exclusive: bool = False) -> None:
        path.touch()
        full()

    monkeypatch.setattr(meters, "write_json", torn)
    monkeypatch.setattr(checkpoint, "save", full)
    job = make_job(small_plan())
    with pytest.raises(OSError, match="No space left"):
        train(job)
    assert capsys.readouterr().err.count("actual.json was not written") == 1
    assert not (job.run_dir / "actual.json").exists()  # an empty one would be taken for a measurement


def test_rank_without_a_pytorch_that_loads_says_so_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delenv(LAUNCHER_VARIABLE, raising=False)
    outcome = run_rank({}, tmp_path, StopRequest(), started_unix=0.0, resume=False, progress=sys.stdout)
    assert outcome.exit_code == 4
    assert outcome.reason.startswith("rank 0: PyTorch cannot be loaded: ModuleNotFoundError: ")
    assert first_failure(tmp_path) is not None
    assert capsys.readouterr().err.splitlines()[-1] == "  To fix: pip install --force-reinstall torch"


@pytest.mark.parametrize(
    "error", [ImportError("libtorch_cpu.so: failed to map segment from shared object"), MemoryError(), SystemError("x")]
)
def test_rank_tells_a_lack_of_room_from_a_broken_installation(error: Exception):
    assert not_loaded(0, error).reason.endswith("To fix: ulimit -v unlimited, or more memory")
