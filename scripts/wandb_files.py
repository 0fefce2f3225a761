"""What does the folder of a W&B run on this disk hold? Read by W&B's own reader, `wandb leet inspect`.

An offline run is one file of records, `run-ID.wandb`, in `offline-run-TIME-ID/`; an online one leaves it too.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READER_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """One run as its file tells it."""

    run_id: str
    name: str
    project: str
    entity: str
    state: str  # finished, failed, crashed or running
    started: str
    config: dict[str, Any]
    summary: dict[str, Any]
    last_step: int


class Unreadable(Exception):
    """The file cannot be read, and why."""


def run_folders(place: Path) -> list[Path]:
    """Every W&B run below a folder, oldest first: the folder itself, a run folder of ours, or a whole runs_dir."""
    return sorted({path.parent for path in place.rglob("run-*.wandb")}, key=lambda path: path.name)


def read_run(folder: Path) -> RunFile:
    """Config, summary and state."""
    summary = json.loads(_inspect(folder, "-summary"))
    return RunFile(
        run_id=summary["run_id"],
        name=summary.get("name") or summary["run_id"],
        project=summary.get("project") or "",
        entity=summary.get("entity") or "",
        state=summary.get("state") or "",
        started=summary.get("start_time") or "",
        config=summary.get("config") or {},
        summary=summary.get("summary") or {},
        last_step=int(summary.get("step") or 0),
    )


def records(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    """`history`, `environment`, ... records, in their order."""
    for line in _inspect(folder).splitlines():
        document = json.loads(line)
        if document.get("type") == kind:
            yield document[kind]


def _inspect(folder: Path, *options: str) -> str:
    import wandb.util

    files = sorted(folder.glob("run-*.wandb"))
    if not files:
        raise Unreadable(f"{folder} holds no run-*.wandb")
    command = [wandb.util.get_core_path(), "leet", "inspect", "-no-observability", "-json", *options]
    try:
        done = subprocess.run(
            [*command, "-run-file", str(files[0])], check=True, capture_output=True, text=True, timeout=READER_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unreadable(f"{files[0]} cannot be read by W&B's own reader ({error}); wandb>=0.31 has it") from error
    return done.stdout
