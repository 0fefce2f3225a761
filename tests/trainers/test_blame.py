"""Whose fault is it: this rank's own error, a neighbour's, or memory's?"""

# ruff: noqa: TID253 - torch's errors are what is read here
from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from preflight.errors import TrainingFailed
from trainers import blame as module
from trainers.blame import blame, failure_of, is_lost_connection, ran_out_of_memory
from trainers.oom_kill import n_oom_kills
from trainers.outcome import Failure, first_failure, write_failure

GLOO = RuntimeError(
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:1"
)
CPU_ALLOCATOR = "[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"


@pytest.fixture
def in_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.dist, "is_initialized", lambda: True)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError(CPU_ALLOCATOR),
        MemoryError(),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_out_of_memory_is_told_whoever_raises_it(error: Exception):
    assert ran_out_of_memory(error)
    assert failure_of(1, 7, error).is_out_of_memory
    outer = RuntimeError("in the backward pass")
    outer.__cause__ = error
    assert ran_out_of_memory(outer)


def test_other_errors_are_not_out_of_memory():
    assert not ran_out_of_memory(RuntimeError("size mismatch"))
    assert not failure_of(0, 0, OSError(errno.ENOSPC, "No space left on device")).is_out_of_memory


@pytest.mark.usefixtures("in_a_group")
def test_lost_connection_is_an_effect():
    assert is_lost_connection(GLOO)
    assert is_lost_connection(dist.DistBackendError("NCCL error: remote process exited or there was a network error"))
    assert not is_lost_connection(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_lost_connection(TrainingFailed("the loss of step 3 is nan"))


@pytest.mark.usefixtures("in_a_group")
def test_blame_takes_the_neighbours_word(tmp_path: Path):
    cause = Failure(rank=1, exit_code=5, reason="rank 1, after step 3: the loss is nan", unix_seconds=1.0, step=3)
    write_failure(tmp_path, cause, author="rank-1")
    assert blame(tmp_path, 0, 3, GLOO) == cause
    assert first_failure(tmp_path) == cause


@pytest.mark.usefixtures("in_a_group")
def test_blame_finds_the_neighbour_that_was_killed(tmp_path: Path):
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "rank-1").write_text(str(os.getpid()))  # its file, and no lock
    cause = blame(tmp_path, 0, 3, GLOO)
    assert (cause.rank, cause.killed_by) == (1, "a signal")
    assert first_failure(tmp_path) == cause


@pytest.mark.usefixtures("in_a_group")
def test_blame_stays_here_when_no_neighbour_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "NEIGHBOUR_SECONDS", 0.0)
    cause = blame(tmp_path, 0, 3, GLOO)
    assert (cause.rank, cause.step) == (0, 3)
    assert cause.reason.startswith("rank 0, after step 3: RuntimeError: ")


def test_oom_kills_are_counted_of_the_own_group_first(tmp_path: Path):
    assert n_oom_kills(tmp_path) is None
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/vmstat").write_text("pgfault 9\noom_kill 7\n")
    assert n_oom_kills(tmp_path) == 7
    (tmp_path / "proc/self/cgroup").write_text("0::/user/me\n")
    (tmp_path / "sys/fs/cgroup/user/me").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/user/me/memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert n_oom_kills(tmp_path) == 2
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/docker/ab\n0::/\n")
    (tmp_path / "sys/fs/cgroup/memory").mkdir()
    (tmp_path / "sys/fs/cgroup/memory/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert n_oom_kills(tmp_path) == 5
