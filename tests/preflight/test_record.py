"""The ledger: lines stay whole whatever happens to the processes that write them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight import record as ledger
from preflight.actual import Actual
from preflight.bill import make_bill
from preflight.ledger_line import LEDGER_VERSION
from preflight.plan import Calibration, Factor, RunPlan
from preflight.planfile import from_jsonable, to_jsonable, write_json
from tests.conftest import build_plan

MakePlan = Callable[..., RunPlan]


PLAN = to_jsonable(build_plan(model="tiny", card="cpu"))


def line(name: str, **extra: Any) -> dict[str, Any]:
    """A refused run of today's version."""
    return {
        "schema_version": LEDGER_VERSION, "run_id": name, "name": "tiny", "created_at": "2026-11-30T12:00:00+00:00",
        "decision": "refuse", "exit_code": 3, "plan": PLAN, "estimate": {}, "actual": None, **extra,
    }  # fmt: skip


def names(place: Path) -> list[str]:
    return [record["run_id"] for record in ledger.read_ledger(place).records]


def test_append_line_makes_the_folder_and_the_line_is_read_back(tmp_path: Path) -> None:
    path = ledger.ledger_path(tmp_path / "new" / "runs")
    ledger.append_line(path, line("a", note="naïve"))
    assert path == tmp_path / "new" / "runs" / "ledger.jsonl"
    assert ledger.read_ledger(tmp_path / "new" / "runs").records == (line("a", note="naïve"),)


def test_read_ledger_takes_a_file_as_well_as_a_folder(tmp_path: Path) -> None:
    other = tmp_path / "team.jsonl"
    ledger.append_line(other, line("a"))
    assert names(other) == ["a"]
    renamed = tmp_path / "history.txt"
    other.rename(renamed)
    assert names(renamed) == ["a"]


def test_read_ledger_is_empty_when_there_is_none(tmp_path: Path) -> None:
    assert ledger.read_ledger(tmp_path) == ledger.Ledger(records=(), warnings=(), sha256=None)


def test_read_ledger_hashes_the_file_as_it_stands(tmp_path: Path) -> None:
    ledger.append_line(tmp_path / "ledger.jsonl", line("a"))
    expected = hashlib.sha256((tmp_path / "ledger.jsonl").read_bytes()).hexdigest()
    assert ledger.read_ledger(tmp_path).sha256 == expected


def test_a_line_torn_by_kill_9_is_skipped_with_a_warning_and_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger.append_line(path, line("before"))
    with path.open("ab") as file:
        file.write(json.dumps(line("torn")).encode()[:20])
    read = ledger.read_ledger(tmp_path)
    assert names(tmp_path) == ["before"]
    assert len(read.warnings) == 1
    assert "line 2 skipped: not JSON" in read.warnings[0]
    ledger.append_line(path, line("after"))
    assert names(tmp_path) == ["before", "after"]


@settings(max_examples=30, deadline=None)
@given(st.integers(min_value=0), st.binary(max_size=40))
def test_whatever_the_last_write_left_the_next_record_is_read(cut: int, junk: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        ledger.append_line(path, line("a"))
        ledger.append_line(path, line("b"))
        data = path.read_bytes()
        path.write_bytes(data[: cut % (len(data) + 1)] + junk)
        ledger.append_line(path, line("c"))
        assert names(Path(folder))[-1] == "c"


def test_many_broken_lines_are_told_in_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"torn\n' * 49 + "[]\n")
    (line,) = ledger.read_ledger(tmp_path).told()
    assert line == (
        f"{path} line 1 skipped: not JSON (a write was cut short); and 49 more lines, "
        "the last is line 50: not a record of ours"
    )
    path.write_text('{"torn\n' * 2)
    assert len(ledger.read_ledger(tmp_path).told()) == 2


def test_foreign_lines_and_other_schemas_are_skipped_with_their_line_number(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"loss": 3}\n[1]\n\n{"schema_version": 99, "plan": {}}\n')
    ledger.append_line(path, line("a"))
    read = ledger.read_ledger(tmp_path)
    assert names(tmp_path) == ["a"]
    assert [warning.split(" line ")[1] for warning in read.warnings] == [
        "1 skipped: not a record of ours",
        "2 skipped: not a record of ours",
        "4 skipped: schema_version 99 is of a newer preflight; this one reads up to 2",
    ]


def test_n_last_reads_only_the_end(tmp_path: Path) -> None:
    for name in "abcd":
        ledger.append_line(tmp_path / "ledger.jsonl", line(name))
    assert [record["run_id"] for record in ledger.read_ledger(tmp_path, n_last=2).records] == ["c", "d"]


def test_a_diverged_loss_is_written_as_null_so_that_the_line_is_strict_json(tmp_path: Path) -> None:
    ledger.append_line(tmp_path / "ledger.jsonl", line("a", actual={"train_loss": float("nan"), "x": [float("inf")]}))
    assert ledger.read_ledger(tmp_path).records[0]["actual"] == {"train_loss": None, "x": [None]}


def _append_many(path: Path, writer: int, n_lines: int) -> None:
    for i in range(n_lines):
        ledger.append_line(path, line(f"{writer}-{i}", padding="x" * 20_000))


def test_processes_that_append_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_append_many, args=(path, writer, 15)) for writer in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
    read = ledger.read_ledger(path)
    assert read.warnings == ()
    assert sorted(names(path)) == sorted(f"{writer}-{i}" for writer in range(6) for i in range(15))


def test_a_writer_killed_at_any_moment_leaves_a_ledger_that_others_go_on_with(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    context = multiprocessing.get_context("fork")
    for delay_seconds in (0.005, 0.01, 0.02):
        process = context.Process(target=_append_many, args=(path, 0, 100_000))
        process.start()
        time.sleep(delay_seconds)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(timeout=10)
    ledger.append_line(path, line("survivor"))
    assert names(path)[-1] == "survivor"


def test_a_full_disk_takes_the_partial_line_back(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger.append_line(path, line("a"))
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real_write(descriptor, data[:10]))
    with pytest.raises(OSError, match="disk is full"):
        ledger.append_line(path, line("b"))
    monkeypatch.undo()
    assert ledger.read_ledger(path).warnings == ()
    assert names(path) == ["a"]


def test_append_does_not_wait_forever_for_a_lock(tmp_path: Path, monkeypatch: Any) -> None:
    import fcntl

    monkeypatch.setattr(ledger, "LOCK_TIMEOUT_SECONDS", 0.05)
    path = tmp_path / "ledger.jsonl"
    path.touch()
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ledger.append_line(path, line("a"))
    assert names(path) == ["a"]


def test_git_state_is_unknown_outside_a_repository(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert ledger.git_state(tmp_path) == {"commit": None, "dirty": None}


def test_git_state_is_unknown_without_git(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ledger.git_state(tmp_path) == {"commit": None, "dirty": None}


def test_git_state_sees_the_commit_and_changes_of_tracked_files(tmp_path: Path, monkeypatch: Any) -> None:
    import subprocess

    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    (tmp_path / "a").write_text("1")
    for command in (["init", "-q"], ["add", "a"], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    clean = ledger.git_state(tmp_path)
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "untracked").write_text("2")
    assert ledger.git_state(tmp_path)["dirty"] is False
    (tmp_path / "a").write_text("2")
    assert ledger.git_state(tmp_path) == {"commit": clean["commit"], "dirty": True}


def measured(**fields: Any) -> Actual:
    base: dict[str, Any] = dict.fromkeys((field.name for field in dataclasses.fields(Actual)), None)
    base |= {
        "wall_terms_seconds": {"startup": 4.0},
        "early_peaks_bytes": {},
        "n_steps_done": 20,
        "first_step": 0,
        "exit_code": 0,
        "exit_reason": "done",
        "device": "test CPU",
        "torch": "2.13.0+cpu",
        "energy_is_measured": False,
    }
    return Actual(**base | fields)


def test_a_record_holds_the_whole_experiment(tmp_path: Path, make_plan: MakePlan) -> None:
    run_dir = tmp_path / "20261130-120000-tiny"
    run_dir.mkdir()
    write_json({"tracking": {"backend": "wandb", "run_id": "abc"}}, run_dir / "tracking.json")
    bill = make_bill(make_plan(model="tiny", card="cpu"), ())
    actual = measured(step_seconds=0.5, train_loss=float("nan"))
    ledger.append_to_ledger(tmp_path, bill, actual, run_dir=run_dir, exit_code=0, reason="done")
    (record,) = ledger.read_ledger(tmp_path).records
    assert from_jsonable(RunPlan, record["plan"]) == bill.plan
    assert (record["run_id"], record["run_dir"]) == (run_dir.name, str(run_dir))
    assert (record["decision"], record["exit_code"], record["exit_reason"]) == ("go", 0, "done")
    assert record["command"] == "python launch.py"
    assert record["estimate"]["estimate/step_seconds"] == bill.estimate.step.seconds.mid  # type: ignore[union-attr]
    assert record["actual"]["actual/step_seconds"] == 0.5
    assert record["actual"]["actual/wall_startup_seconds"] == 4.0
    assert record["actual"]["actual/train_loss"] is None
    assert record["versions"]["torch"] == "2.13.0+cpu"
    assert record["tracking"] == {"backend": "wandb", "run_id": "abc"}
    assert record["asked_plan"] is None
    assert set(record["git"]) == {"commit", "dirty"}


def test_a_refusal_is_recorded_with_its_violations_and_no_actual(tmp_path: Path, make_plan: MakePlan) -> None:
    bill = make_bill(make_plan(budget={"max_hours": 1e-6}), ())
    ledger.append_to_ledger(tmp_path, bill, None, run_dir=None, exit_code=3, reason="refuse")
    (record,) = ledger.read_ledger(tmp_path).records
    assert (record["decision"], record["exit_code"], record["actual"]) == ("refuse", 3, None)
    assert record["violations"][0]["budget"] == "hours"
    assert record["run_id"] == "2026-11-30T12:00:00+00:00-gpt2_124m"


def test_the_raw_estimate_is_the_one_without_calibration(make_plan: MakePlan) -> None:
    plan = make_plan(model="tiny", card="cpu")
    twice = Factor(value=2.0, low=2.0, high=2.0, n_runs=1, scope="same plan")
    calibrated = replace(plan, calibration=Calibration(n_runs=1, factors={"step_seconds": twice}, ledger_sha256=None))
    record = ledger.make_record(make_bill(calibrated, ()), None, run_dir=None, exit_code=0, reason="")
    assert record["estimate"]["estimate/step_seconds"] == pytest.approx(2 * record["raw"]["estimate/step_seconds"])
    assert sum(record["raw"]["estimate/memory_terms_bytes"].values()) == pytest.approx(
        record["raw"]["estimate/peak_device_bytes"], rel=1e-6
    )


def test_ledger_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ledger.jsonl")
    found = ledger.read_ledger(tmp_path)
    assert (found.records, found.warnings) == ((), (f"{tmp_path}/ledger.jsonl is no file",))
