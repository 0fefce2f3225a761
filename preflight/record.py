"""The ledger of all runs: one JSON line each, estimates beside actuals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from preflight.actual import Actual
from preflight.bill import Bill


def append_to_ledger(runs_dir: Path, bill: Bill, actual: Actual | None, *, run_dir: Path | None, reason: str) -> None:
    """One line, atomically, also when the answer was no."""
    raise NotImplementedError


def read_ledger(runs_dir: Path) -> list[dict[str, Any]]:
    """Every sound line; a torn last one is skipped with a warning."""
    raise NotImplementedError
