"""Who is to blame when a rank fails? What it raised, or the neighbour that it lost.

A collective breaks when one of its ranks dies, and every other rank raises an error about its connection. That error is
an effect: the cause is the neighbour that left word of its own failure, or the one that was killed and left none.
"""

from __future__ import annotations

import errno
import re
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from preflight import presence
from preflight.errors import ExitCode, PreflightError
from trainers.oom_kill import was_killed_for_memory
from trainers.outcome import Failure, first_failure, killed, write_failure
from trainers.warn import warn

DISK_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}  # the reason says it all: no traceback
NEIGHBOUR_SECONDS = 1.5  # for a neighbour to be gone for good, or to have left word
# gloo's transport, NCCL's watchdog, and the store, when the other side is gone.
LOST_CONNECTION = re.compile(
    r"gloo.*(?:connection|peer|broken pipe|timed out|socket)|connection (?:closed|reset) by (?:peer|remote)|"
    r"nccl (?:communicator was aborted|error)|remote process exited|broken pipe|failed to recv, got 0 bytes",
    re.IGNORECASE | re.DOTALL,
)
# CUDA and ROCm, cuBLAS's workspace, NCCL's buffers, the C library under PyTorch's CPU allocator, and Apple's.
OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|Cannot allocate memory",
)


def blame(run_dir: Path, rank: int, step: int, error: Exception) -> Failure:
    """The cause of this rank's error, left in the run's folder for all to read."""
    failure = _neighbours_failure(run_dir, rank) if is_lost_connection(error) else None
    if failure is None:
        failure = failure_of(rank, step, error)
    write_failure(run_dir, failure, author=f"rank-{failure.rank}")
    return failure


def failure_of(rank: int, step: int | None, error: Exception) -> Failure:
    """What a person reads; a traceback only for what nobody foresaw. Step None: not known here."""
    is_out_of_memory = ran_out_of_memory(error)
    if isinstance(error, PreflightError):
        reason, code = str(error), int(error.exit_code)
    else:
        if not is_out_of_memory and not (isinstance(error, OSError) and error.errno in DISK_TROUBLE):
            warn("".join(traceback.format_exception(error)).rstrip())
        reason, code = f"{type(error).__name__}: {error}".rstrip(": "), int(ExitCode.TRAINING_FAILED)
    return Failure(
        rank=rank,
        exit_code=code,
        reason=f"rank {rank}{'' if step is None else f', after step {step}'}: {reason}",
        unix_seconds=time.time(),
        step=step,
        is_out_of_memory=is_out_of_memory,
    )


def is_lost_connection(error: Exception) -> bool:
    """The error of a rank whose neighbour is gone."""
    if isinstance(error, PreflightError) or not dist.is_initialized():
        return False
    return any(isinstance(one, dist.DistBackendError) or LOST_CONNECTION.search(str(one)) for one in _chain(error))


def ran_out_of_memory(error: BaseException) -> bool:
    """Whatever raised it: PyTorch's allocators, a library below it, or Python itself."""
    return any(
        isinstance(one, torch.OutOfMemoryError | MemoryError)
        or (isinstance(one, RuntimeError | OSError) and OUT_OF_MEMORY.search(str(one)))
        for one in _chain(error)
    )


def _neighbours_failure(run_dir: Path, rank: int) -> Failure | None:
    """A neighbour that dies closes its connections before the kernel has let go of its lock: wait a little."""
    deadline = time.monotonic() + NEIGHBOUR_SECONDS
    while time.monotonic() < deadline:
        told = first_failure(run_dir)
        if told is not None and told.rank != rank:
            return told
        for other in presence.gone(run_dir):
            if other != rank:
                return killed(other, None, is_out_of_memory=was_killed_for_memory())
        time.sleep(presence.LOOK_SECONDS)
    return None  # on another node, or the network itself


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__
