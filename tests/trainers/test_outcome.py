"""How a run ended: what the files say, and what is believed when a full disk has kept them short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.backends import torchrun
from trainers.backends.local import _descriptor, _outcome
from trainers.outcome import Failure, clear_failures, first_failure, killed, write_failure


def failure(rank: int, second: float) -> Failure:
    return Failure(rank=rank, exit_code=5, reason=f"rank {rank}: gone", unix_seconds=second)


def test_first_failure_is_the_earliest_and_passes_over_what_a_full_disk_kept_short(tmp_path: Path):
    write_failure(tmp_path, failure(1, 20.0), author="rank-1")
    write_failure(tmp_path, failure(0, 10.0), author="rank-0")
    for name, text in (("rank-2", ""), ("rank-3", '{"rank": 3'), ("rank-4", "[]"), ("rank-5", '{"rank": 5}')):
        (tmp_path / "failures" / f"{name}.json").write_text(text)
    assert first_failure(tmp_path) == failure(0, 10.0)
    clear_failures(tmp_path)
    assert first_failure(tmp_path) is None


def test_write_failure_says_so_when_it_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "failures").write_text("a file is in the way")
    write_failure(tmp_path, failure(0, 1.0), author="rank-0")
    assert "failures was not written" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "name"), [(130, "SIGINT"), (143, "SIGTERM")])
def test_outcome_names_the_signal_that_only_the_agent_got(tmp_path: Path, code: int, name: str):
    early = _outcome(tmp_path, code, [], has_agent=True)
    assert early.exit_code == code
    assert early.reason.startswith(name)


def test_outcome_names_the_agent_when_it_was_killed(tmp_path: Path):
    several, one = (_outcome(tmp_path, -9, [], has_agent=has_agent) for has_agent in (True, False))
    assert (several.exit_code, several.failed_rank) == (5, None)
    assert "torchrun was killed" in several.reason
    assert (one.exit_code, one.failed_rank) == (5, 0)
    assert "rank 0 was killed by SIGKILL" in one.reason


@pytest.mark.parametrize(("code", "exit_code"), [(0, 0), (2, 2), (6, 6), (143, 143), (1, 5), (17, 5)])
def test_outcome_keeps_the_childs_exit_code_when_it_is_one_of_ours(tmp_path: Path, code: int, exit_code: int):
    assert _outcome(tmp_path, code, [], has_agent=False).exit_code == exit_code


@pytest.mark.parametrize(("name", "exit_code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGUSR1", 143), ("SIGHUP", 143)])
def test_outcome_is_the_signals_unless_a_rank_failed(tmp_path: Path, name: str, exit_code: int):
    assert _outcome(tmp_path, 1, [name], has_agent=True).exit_code == exit_code
    write_failure(tmp_path, killed(1, 9), author="agent")
    assert _outcome(tmp_path, 1, [name], has_agent=True).failed_rank == 1


def test_descriptor_of_a_closed_stream_leads_nowhere(tmp_path: Path):
    assert _descriptor(None, 1) == subprocess.DEVNULL
    with (tmp_path / "out").open("w") as file:
        assert _descriptor(file, 1) == file.fileno()
    assert _descriptor(file, 2) == 2  # closed on Python's side


def test_leave_keeps_the_exit_code_when_nobody_reads():
    program = "from trainers.outcome import leave; print('x' * 9); leave(6)"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, check=False, env=buffered
        )
    assert (done.returncode, done.stderr) == (6, b"")


def test_publish_forgets_the_failures_of_an_earlier_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told: dict[str, str] = {}
    monkeypatch.setattr(torchrun, "_store", lambda: type("Store", (), {"set": staticmethod(told.__setitem__)}))
    write_failure(tmp_path, failure(1, 20.0), author="rank-1")
    torchrun.publish({"exit_code": 2, "document": None})
    assert first_failure(tmp_path) is not None
    torchrun.publish({"exit_code": 0, "document": {}, "run_dir": str(tmp_path), "resume": True})
    assert first_failure(tmp_path) is None
    assert len(told) == 1


def test_first_failure_prefers_who_saw_the_signal(tmp_path: Path):
    write_failure(tmp_path, killed(1, None), author="rank-1")
    write_failure(tmp_path, killed(1, 9), author="agent")
    cause = first_failure(tmp_path)
    assert cause is not None
    assert cause.killed_by == "SIGKILL"
