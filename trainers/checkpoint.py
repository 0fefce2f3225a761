"""How does a run survive its death? Each checkpoint is one file, whole or absent, and believed only when it verifies.

`torch.save` writes a ZIP archive with a CRC-32 of every tensor and its table of contents at the very end, so a file
that was cut short, has a flipped bit, or came from elsewhere gives itself away without a second file of checksums.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from preflight.errors import TrainingFailed
from preflight.units import format_bytes

FORMAT = "preflight checkpoint 1"
FOLDER = "checkpoints"
PATTERN = "step_*.pt"


def path_of(run_dir: Path, step: int) -> Path:
    """Sorts by step."""
    return run_dir / FOLDER / f"step_{step:08d}.pt"


def step_of(path: Path) -> int:
    """The inverse."""
    return int(path.stem.removeprefix("step_"))


def save(run_dir: Path, step: int, state: Mapping[str, Any], keep: int) -> Path:
    """Write beside its place, flush, rename; then let go of all but the newest `keep`."""
    path = path_of(run_dir, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            torch.save({"format": FORMAT, "step": step, **state}, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # torch's archive writer turns ENOSPC into RuntimeError
        temporary.unlink(missing_ok=True)
        n_bytes, free = _tensor_bytes(state), shutil.disk_usage(path.parent).free
        raise TrainingFailed(
            f"checkpoint of step {step} was not written to {path}: {error}. It needs {format_bytes(n_bytes)}, "
            f"{format_bytes(free)} are free; earlier checkpoints are untouched.\n"
            "  To fix: free disk space, or runs_dir=ELSEWHERE, then resume="
            f"{run_dir}"
        ) from error
    temporary.replace(path)
    _sync_folder(path.parent)
    for old in sorted(path.parent.glob(PATTERN))[:-keep]:
        old.unlink()
    return path


def fault_of(path: Path) -> str | None:
    """What is wrong with the file, or None: every byte is read and held against its CRC-32."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            return f"damaged: {damaged} does not match its checksum"
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        return "missing"
    except (zipfile.BadZipFile, EOFError) as error:
        return f"cut short or not a checkpoint: {error}"
    except Exception as error:  # noqa: BLE001 - unpickling foreign bytes can raise anything, and the answer is the same
        return f"not a checkpoint of ours: {type(error).__name__}"
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        return "not a checkpoint of ours"
    return None


def find_latest(run_dir: Path) -> tuple[Path | None, tuple[str, ...]]:
    """The newest sound checkpoint, and one line about each newer file that was passed over."""
    passed_over: list[str] = []
    for path in sorted((run_dir / FOLDER).glob(PATTERN), reverse=True):
        fault = fault_of(path)
        if fault is None:
            return path, tuple(passed_over)
        passed_over.append(f"{path}: {fault}")
    return None, tuple(passed_over)


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Tensors and plain values only: nothing in the file can run code."""
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state


def _tensor_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(_tensor_bytes(item) for item in value.values())
    return sum(_tensor_bytes(item) for item in value) if isinstance(value, list | tuple) else 0


def _sync_folder(folder: Path) -> None:
    """The rename itself must reach the disk too; Windows has no handle on a folder to flush."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
