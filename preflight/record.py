"""The ledger of all runs, a JSON line each: plan, estimate, actual, versions, device, git state, command, exit reason.

It is append-only and shared by every run under one `runs_dir`. A line is one `write` on an `O_APPEND` descriptor under
an advisory lock; a line torn by a kill or a full disk never swallows the next one, and readers skip it with a warning.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from preflight.actual import Actual, flat_actual
from preflight.bill import Bill
from preflight.estimate import estimate
from preflight.flat import flat_estimate
from preflight.ledger_line import LEDGER_VERSION, sound_line
from preflight.plan import NO_CALIBRATION, RunPlan
from preflight.planfile import LEDGER_NAME, to_jsonable

LOCK_TIMEOUT_SECONDS = 5.0
GIT_TIMEOUT_SECONDS = 2.0
NEWLINE = 0x0A
MOST_TOLD = 2  # warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The sound lines of a ledger, oldest first; what was skipped, in words; the file's SHA-256 (None: no file)."""

    records: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]
    sha256: str | None

    def told(self) -> tuple[str, ...]:
        """A few warnings as they are; of many one line: how many, the first and the last with their reasons."""
        n = len(self.warnings)
        if n <= MOST_TOLD:
            return self.warnings
        last = self.warnings[-1].partition(" line ")[2].replace(" skipped", "")
        return (f"{self.warnings[0]}; and {n - 1:,} more lines, the last is line {last}",)


def ledger_path(place: Path) -> Path:
    """`place` is a ledger file, or the folder of runs that holds one."""
    return place if place.is_file() or place.suffix == ".jsonl" else place / LEDGER_NAME


def make_record(
    bill: Bill,
    actual: Actual | None,
    *,
    run_dir: Path | None,
    exit_code: int,
    reason: str,
) -> dict[str, Any]:
    """The line as an object; `raw` is the estimate without calibration, so that its own error can be followed."""
    plan = bill.plan
    return {
        "schema_version": LEDGER_VERSION,
        "run_id": run_dir.name if run_dir else f"{plan.created_at}-{plan.name}",
        "name": plan.name,
        "created_at": plan.created_at,
        "run_dir": str(run_dir) if run_dir else None,
        "command": plan.command,
        "decision": bill.verdict.decision.name,
        "exit_code": int(exit_code),
        "exit_reason": reason,
        "plan": to_jsonable(plan),
        "asked_plan": to_jsonable(bill.asked_plan),
        "changes": to_jsonable(bill.verdict.changes),
        "violations": to_jsonable(bill.verdict.violations),
        "estimate": flat_estimate(bill.estimate),
        "raw": _raw(plan),
        "actual": flat_actual(actual) if actual else None,
        "misprediction": _misprediction(bill, actual),
        "tracking": _tracking(run_dir),
        "device": actual.device if actual else plan.hw.card.label,
        "versions": _versions(plan, actual),
        "git": git_state(Path(__file__).resolve().parents[1]),
    }


def _misprediction(bill: Bill, actual: Actual | None) -> dict[str, Any] | None:
    """The bill said that it would fit, and memory ran out."""
    if actual is None or not actual.is_out_of_memory:
        return None
    memory = bill.estimate.memory
    return {"what": "memory", "predicted_bytes": memory.device.high, "usable_bytes": memory.usable_bytes}


def append_to_ledger(
    runs_dir: Path,
    bill: Bill,
    actual: Actual | None,
    *,
    run_dir: Path | None,
    exit_code: int,
    reason: str,
) -> None:
    """One line, atomically, also when the answer was no. Raises OSError when the disk refuses."""
    record = make_record(bill, actual, run_dir=run_dir, exit_code=exit_code, reason=reason)
    append_line(runs_dir / LEDGER_NAME, record)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Under the lock: mend a torn last line with a newline, then one write; a short write is taken back."""
    line = json.dumps(_finite(record), allow_nan=False, separators=(",", ":")).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        _lock(descriptor)
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1)[0] != NEWLINE
        data = b"\n" + line if is_torn else line
        n_written = os.write(descriptor, data)
        if n_written != len(data):
            os.ftruncate(descriptor, size)
            raise OSError(f"{path}: wrote {n_written} of {len(data)} bytes; the disk is full or over its quota")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)  # releases the lock


def _finite(value: Any) -> Any:
    """A diverged loss is not a number, and JSON has none: null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lock(descriptor: int) -> None:
    """Bounded wait. Without it (held too long, or a file system that has none) O_APPEND still keeps lines whole."""
    try:
        import fcntl
    except ImportError:  # not POSIX
        return
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:  # a network file system without locks
            return
        else:
            return


def read_ledger(place: Path, n_last: int | None = None) -> Ledger:
    """Every sound line of the ledger file or of the one in a folder of runs; no file is an empty ledger.

    `n_last` parses only that many lines from the end, which bounds the time a bill spends here.
    """
    path = ledger_path(place)
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            return Ledger(records=(), warnings=(f"{path} is no file",), sha256=None)
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return Ledger(records=(), warnings=(), sha256=None)
    except OSError as error:
        return Ledger(records=(), warnings=(f"{path} cannot be read: {error.strerror}",), sha256=None)
    import hashlib  # without a ledger nobody pays for it

    lines = [(number, line) for number, line in enumerate(data.split(b"\n"), start=1) if line.strip()]
    records, warnings = [], []
    for number, line in lines if n_last is None else lines[-n_last:]:
        record = _parse(line)
        if isinstance(record, str):
            warnings.append(f"{path} line {number} skipped: {record}")
        else:
            records.append(record)
    return Ledger(records=tuple(records), warnings=tuple(warnings), sha256=hashlib.sha256(data).hexdigest())


def _parse(line: bytes) -> dict[str, Any] | str:
    """The record, or why it is not one."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):  # UnicodeDecodeError is the first
        return "not JSON (a write was cut short)"
    return sound_line(document)


def _raw(plan: RunPlan) -> dict[str, Any]:
    """What the formulas alone say."""
    bare = estimate(replace(plan, calibration=NO_CALIBRATION))
    mids = {name: value for name, value in flat_estimate(bare).items() if not name.endswith(("_low", "_high"))}
    return mids | {"estimate/memory_terms_bytes": dict(bare.memory.terms_bytes)}


def _tracking(run_dir: Path | None) -> dict[str, Any] | None:
    """The tracked run's id and how it went, as the trainer left it; None: not tracked."""
    path = run_dir / "tracking.json" if run_dir else None
    try:
        note = json.loads(path.read_text())["tracking"] if path else None
    except (OSError, ValueError, KeyError, TypeError):  # none, or a full disk has cut it short
        return None
    return note if isinstance(note, dict) else None


def _versions(plan: RunPlan, actual: Actual | None) -> dict[str, str | None]:
    from importlib import metadata

    def version(package: str) -> str | None:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    return {
        "python": plan.software.python,
        "preflight": plan.software.preflight,
        "torch": actual.torch if actual else plan.software.torch,
        "numpy": version("numpy"),
        "wandb": version("wandb"),
    }


def git_state(folder: Path) -> dict[str, Any]:
    """Commit of the checkout and whether tracked files differ from it; None without git or outside a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None}
    status = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if status is None else bool(status)}


def _git(folder: Path, *arguments: str) -> str | None:
    import subprocess

    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}  # a status must not touch the user's index
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True, text=True, timeout=GIT_TIMEOUT_SECONDS, check=True, env=environment,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip()
