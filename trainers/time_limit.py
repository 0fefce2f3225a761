"""When is the machine taken away? A limit that was given, or Slurm's for the job that this process is a part of.

Slurm: SLURM_JOB_END_TIME (since 23.02, seconds since 1970), else `scontrol show job`, else `squeue`'s time left.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from preflight.plan import LauncherPlan
from preflight.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE

ASK_SECONDS = 5.0  # a controller that is busy is not waited for longer
_TIME_LEFT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")  # days-hours:minutes:seconds


class TimeLimit(NamedTuple):
    """A moment, and who says so."""

    end_unix_seconds: float
    source: str


def time_limit(
    launcher: LauncherPlan, environ: Mapping[str, str], *, started_unix: float, now_unix: float
) -> TimeLimit | None:
    """The earlier of the two; None: nobody sets one."""
    limits = []
    if launcher.time_limit_hours is not None:
        end = started_unix + launcher.time_limit_hours * SECONDS_PER_HOUR
        limits.append(TimeLimit(end, f"launcher.time_limit_hours={launcher.time_limit_hours:g}"))
    slurm_end = _slurm_end(environ, now_unix)
    if slurm_end is not None:
        limits.append(TimeLimit(slurm_end, f"the time limit of Slurm job {environ['SLURM_JOB_ID']}"))
    return min(limits, default=None)


def _slurm_end(environ: Mapping[str, str], now_unix: float) -> float | None:
    job_id = environ.get("SLURM_JOB_ID")
    if not job_id:
        return None
    told = environ.get("SLURM_JOB_END_TIME", "")
    if told.isdecimal():
        return float(told)
    shown = re.search(r"\bEndTime=(\S+)", _ask(environ, "scontrol", "show", "job", "-o", job_id))
    if shown and (end := _moment(shown.group(1))) is not None:
        return end
    left = _TIME_LEFT.fullmatch(_ask(environ, "squeue", "--noheader", "--jobs", job_id, "--format", "%L").strip())
    if left is None:  # UNLIMITED, or no squeue here
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in left.groups())
    return now_unix + days * SECONDS_PER_DAY + hours * SECONDS_PER_HOUR + minutes * SECONDS_PER_MINUTE + seconds


def _moment(text: str) -> float | None:
    """Slurm prints this machine's time without a zone; `Unknown` when there is no limit."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _ask(environ: Mapping[str, str], *command: str) -> str:
    """What it prints; nothing when it is not there, fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ASK_SECONDS, env=dict(environ), check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
