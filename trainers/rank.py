"""Train as one rank of a world, and leave word of how it ended: under our agent or the user's torchrun."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from preflight import presence
from preflight.plan import RunPlan
from preflight.planfile import from_jsonable
from trainers.importing import few_collections
from trainers.outcome import Failure, Outcome, as_outcome, first_failure, not_loaded, write_failure
from trainers.signals import LAUNCHER_VARIABLE, StopRequest
from trainers.warn import warn


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
    rank = int(os.environ.get("RANK", 0))
    try:
        with few_collections():
            import torch._dynamo  # noqa: F401 - by the first optimizer in any case
    except Exception as error:  # noqa: BLE001 - libraries that are half there fail in any way
        return _told(not_loaded(rank, error), run_dir)
    with few_collections():
        from trainers.blame import failure_of
        from trainers.job import Job
        from trainers.pretrain import train  # torch: seconds

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
        usable_bytes=running.get("usable_bytes"),
        estimate=document["estimate"],
        stop=stop,
        progress=progress,
    )
    with presence.present(run_dir, rank):
        try:
            measured = train(job)
        except Exception as error:  # noqa: BLE001 - the last place that can leave word
            failure = first_failure(run_dir) or failure_of(rank, None, error)  # on another node, or the disk is full
        else:
            return Outcome(exit_code=measured.exit_code, reason=measured.exit_reason)
    return _told(failure, run_dir)


def _told(failure: Failure, run_dir: Path) -> Outcome:
    """Once for all ranks: by launch.py, where it is in charge and can read it."""
    if first_failure(run_dir) is None:
        write_failure(run_dir, failure, author=f"rank-{failure.rank}")
    if LAUNCHER_VARIABLE not in os.environ or first_failure(run_dir) is None:  # a full disk keeps no word
        warn(failure.reason)
    return as_outcome(failure)
