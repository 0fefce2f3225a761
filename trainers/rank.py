"""Train as one rank of a world, and leave word of how it ended: under our agent or the user's torchrun."""

from __future__ import annotations

import errno
import os
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from preflight.errors import ExitCode, PreflightError
from preflight.plan import RunPlan
from preflight.planfile import from_jsonable
from trainers.outcome import Failure, Outcome, first_failure, write_failure
from trainers.signals import StopRequest
from trainers.warn import warn

DISK_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}  # the reason says it all: no traceback


def run_rank(
    document: Mapping[str, Any],
    run_dir: Path,
    stop: StopRequest,
    *,
    started_unix: float,
    resume: bool,
    progress: TextIO,
) -> Outcome:
    """Train as this rank of the world that the environment describes."""
    from trainers.job import Job
    from trainers.pretrain import train  # torch: seconds

    rank = int(os.environ.get("RANK", 0))
    running, plan = document["running"], from_jsonable(RunPlan, document["plan"])
    job = Job(
        plan=plan,
        run_dir=run_dir,
        started_unix=started_unix,
        resume=resume,
        flops_per_step=running["flops_per_step"],
        peak_flops_per_second=running["peak_flops_per_second"],
        usd_per_hour=running["usd_per_hour"],
        watts=running["watts"],
        estimate=document["estimate"],
        stop=stop,
        progress=progress,
    )
    try:
        measured = train(job)
    except Exception as error:  # noqa: BLE001 - the last place that can leave word
        failure = _failure(rank, error)
    else:
        return Outcome(exit_code=measured.exit_code, reason=measured.exit_reason)
    write_failure(run_dir, failure, author=f"rank-{rank}")
    warn(failure.reason)
    first = first_failure(run_dir) or failure
    return Outcome(exit_code=first.exit_code, reason=first.reason, failed_rank=first.rank)


def _failure(rank: int, error: Exception) -> Failure:
    """What a person reads; a traceback only for what nobody foresaw."""
    if isinstance(error, PreflightError):
        reason, code = str(error), int(error.exit_code)
    else:
        if not (isinstance(error, OSError) and error.errno in DISK_TROUBLE):
            warn("".join(traceback.format_exception(error)).rstrip())
        reason, code = f"{type(error).__name__}: {error}", int(ExitCode.TRAINING_FAILED)
    return Failure(rank=rank, exit_code=code, reason=f"rank {rank}: {reason}", unix_seconds=time.time())
