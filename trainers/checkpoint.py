"""How does a run survive its death? Each checkpoint is one file, whole or absent, and believed only when it verifies.

`torch.save` writes a ZIP archive with a CRC-32 of every tensor and its table of contents at the very end, so a file
that was cut short, has a flipped bit, or came from elsewhere gives itself away without a second file of checksums.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from preflight.errors import TrainingFailed
from preflight.planfile import write_json
from preflight.units import format_bytes
from trainers.warn import warn

FORMAT = "preflight checkpoint 1"
FOLDER = "checkpoints"
BEST_NAME = "best.json"  # which of the files has the lowest held-out loss
NAME = re.compile(r"step_(\d{8,})\.pt")


def path_of(run_dir: Path, step: int) -> Path:
    """Sorts by step."""
    return run_dir / FOLDER / f"step_{step:08d}.pt"


def step_of(path: Path) -> int:
    """The inverse."""
    return int(path.stem.removeprefix("step_"))


def all_in(run_dir: Path) -> list[Path]:
    """Sound or not, oldest first; files of other names are none of ours."""
    found = [path for path in (run_dir / FOLDER).glob("step_*.pt") if NAME.fullmatch(path.name)]
    return sorted(found, key=step_of)


def save(run_dir: Path, step: int, state: Mapping[str, Any], *, keep: int, keep_best: bool = False) -> Path:
    """Write beside its place, flush, rename; then let go of all but the newest `keep`, and the best."""
    path = path_of(run_dir, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            torch.save({"format": FORMAT, "step": step, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
        if keep_best and state.get("val_step") == step:
            _remember_best(run_dir, step, state["val_loss"])
    except (OSError, RuntimeError) as error:  # torch's archive writer turns ENOSPC into RuntimeError
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise TrainingFailed(_not_written(path, step, state, error)) from error
    _let_go(run_dir, step, keep, best_step(run_dir) if keep_best else None)
    return path


def best_step(run_dir: Path) -> int | None:
    """The step with the lowest held-out loss of those that were saved; None: not known."""
    try:
        return int(json.loads((run_dir / FOLDER / BEST_NAME).read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or torn
        return None


def fault_of(path: Path, model: Mapping[str, Any] | None = None) -> str | None:
    """What is wrong with the file, or None: every byte is read and held against its CRC-32.

    `model` is the plan's: the weights of another one are of no use, whatever their file is called.
    """
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
    if NAME.fullmatch(path.name) and state.get("step") != step_of(path):
        return f"renamed: it holds step {state.get('step')}"
    return None if model is None else _other_model(state, model)


def find_latest(run_dir: Path, model: Mapping[str, Any] | None = None) -> tuple[Path | None, tuple[str, ...]]:
    """The newest sound checkpoint, and one line about each newer file that was passed over."""
    passed_over: list[str] = []
    for path in reversed(all_in(run_dir)):
        fault = fault_of(path, model)
        if fault is None:
            return path, tuple(passed_over)
        passed_over.append(f"{path}: {fault}")
    return None, tuple(passed_over)


def forget_torn_writes(run_dir: Path) -> None:
    """What a killed process was writing; nobody else writes here now."""
    for path in (run_dir / FOLDER).glob("*.tmp"):
        path.unlink(missing_ok=True)


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Tensors and plain values only: nothing in the file can run code."""
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state


def tensor_bytes(value: Any) -> int:
    """Of all tensors in there."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(tensor_bytes(item) for item in value.values())
    return sum(tensor_bytes(item) for item in value) if isinstance(value, list | tuple) else 0


def _not_written(path: Path, step: int, state: Mapping[str, Any], error: Exception) -> str:
    n_bytes, free = tensor_bytes(state), shutil.disk_usage(path.parent).free
    cause = error.__context__ if isinstance(error.__context__, OSError) else error  # torch's own speaks of positions
    return (
        f"checkpoint of step {step} was not written to {path}: {cause}. It needs {format_bytes(n_bytes)} "
        f"({n_bytes:,} bytes), {format_bytes(free)} are free; earlier checkpoints are untouched.\n"
        f"  To fix: free disk space, or runs_dir=ELSEWHERE, then resume={path.parent.parent}"
    )


def _remember_best(run_dir: Path, step: int, val_loss: float) -> None:
    """If it is. A loss that is no number never is."""
    path = run_dir / FOLDER / BEST_NAME
    try:
        lowest = float(json.loads(path.read_text())["val_loss"])
    except (OSError, ValueError, KeyError, TypeError):
        lowest = float("inf")
    if val_loss < lowest:
        try:
            write_json({"step": step, "val_loss": val_loss}, path)
        except OSError as error:  # the checkpoint itself is there
            warn(f"{path} was not written: {error}")


def _let_go(run_dir: Path, step: int, keep: int, best: int | None) -> None:
    """Of older ones. What claims to be newer than this step is not sound, or the run would have gone on from it."""
    mine = [path for path in all_in(run_dir) if step_of(path) <= step]
    for old in mine[:-keep]:
        if step_of(old) != best:
            old.unlink(missing_ok=True)


def _other_model(state: Mapping[str, Any], model: Mapping[str, Any]) -> str | None:
    """By the plan that made it; a field that one of the two does not know is no difference."""
    try:
        theirs = json.loads(state["plan"])["model"]
        differing = [name for name in model if name in theirs and theirs[name] != model[name]]
    except (KeyError, TypeError, ValueError):
        return "not a checkpoint of ours: it holds no plan"
    changes = ", ".join(f"{name} {theirs[name]} instead of {model[name]}" for name in differing)
    return f"of another model: {changes}" if changes else None


def _sync_folder(folder: Path) -> None:
    """The rename itself must reach the disk too; Windows has no handle on a folder to flush."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
