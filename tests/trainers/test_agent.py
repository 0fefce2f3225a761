"""Which failure the agent leaves, from what torchrun tells it."""

# ruff: noqa: TID253 - torchrun's own error is what is read here
from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from trainers.backends.agent import leave_word
from trainers.outcome import first_failure


def error_of(codes: dict[int, int]) -> ChildFailedError:
    return ChildFailedError(
        "worker",
        {rank: ProcessFailure(local_rank=rank, pid=0, exitcode=code, error_file="") for rank, code in codes.items()},
    )


@pytest.mark.parametrize("code", [6, 130, 143])
def test_agent_writes_no_failure_when_the_ranks_stopped_in_order(tmp_path: Path, code: int):
    (tmp_path / "actual.json").write_text("{}")
    assert leave_word(tmp_path, error_of({0: code, 1: code})) == code
    assert first_failure(tmp_path) is None


@pytest.mark.parametrize(
    ("codes", "rank", "exit_code"),
    [({0: 5, 1: 5}, 0, 5), ({1: 2}, 1, 2), ({0: 143, 1: 17}, 1, 5), ({0: 1, 1: -9}, 1, 5)],
)
def test_agent_names_the_rank_that_failed(tmp_path: Path, codes: dict[int, int], rank: int, exit_code: int):
    (tmp_path / "actual.json").write_text("{}")
    assert leave_word(tmp_path, error_of(codes)) == exit_code
    failure = first_failure(tmp_path)
    assert failure is not None
    assert (failure.rank, failure.exit_code) == (rank, exit_code)
    assert failure.killed_by == ("SIGKILL" if -9 in codes.values() else None)


def test_agent_names_a_rank_when_nothing_was_measured(tmp_path: Path):
    assert leave_word(tmp_path, error_of({0: 143})) == 143
    failure = first_failure(tmp_path)
    assert failure is not None
    assert failure.reason == "rank 0 ended with exit code 143"
