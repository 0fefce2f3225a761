"""What a command line comes to: an exit code, or a run to start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from preflight.bill import Bill


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the command line comes to: an exit code, or a run to start in `run_dir`."""

    exit_code: int
    bill: Bill | None = None
    run_dir: Path | None = None  # None: nothing to start
    lock: int | None = None  # keeps other launchers out of run_dir while it is open
    resume: bool = False
    as_json: bool = False
