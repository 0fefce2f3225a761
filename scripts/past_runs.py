"""Where may past W&B runs come from? The API, offline run folders on a disk, and exported JSON or CSV files."""

from __future__ import annotations

import csv
import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from scripts.wandb_files import read_run, records, run_folders

NAMES = ("Name", "display_name", "displayName", "name")  # in a table, `name` is the config's
IDS = ("id", "ID", "run_id")
CREATED = ("created_at", "createdAt", "Created", "start_time")
STATES = ("state", "State")


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """One run as W&B kept it. Empty: not told."""

    run_id: str
    name: str
    created_at: str
    state: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    source: str  # where it was found, for the ledger
    gpu: str = ""  # as the driver calls it
    n_gpus: int = 0
    torch: str = ""


def from_api(path: str) -> Iterator[PastRun]:
    """`entity/project`, with the key and the server that `wandb login` set."""
    import wandb

    for run in wandb.Api().runs(path, lazy=False):
        machine: Mapping[str, Any] = {}
        if "hw" not in run.config:  # only runs that are not ours need to be asked for their machine
            machine = run.metadata or {}
        yield PastRun(
            run_id=run.id,
            name=run.name,
            created_at=str(run.created_at),
            state=run.state,
            config=run.config,
            summary=dict(run.summary),
            source=f"wandb {path}/{run.id}",
            gpu=str(machine.get("gpu") or ""),
            n_gpus=int(machine.get("gpu_count") or 0),
        )


def from_folder(place: Path) -> Iterator[PastRun]:
    """`wandb/`, one `offline-run-...` in it, a run folder of ours or a whole runs_dir."""
    for folder in run_folders(place):
        run = read_run(folder)
        gpus = [gpu for record in records(folder, "environment") for gpu in record.get("gpu_nvidia") or []]
        yield PastRun(
            run_id=run.run_id,
            name=run.name,
            created_at=run.started,
            state=run.state,
            config=run.config,
            summary=run.summary,
            source=f"wandb {folder.name}",
            gpu=str(gpus[0].get("name") or "") if gpus else "",
            n_gpus=len(gpus),
            torch=_torch_of(folder / "files" / "requirements.txt"),
        )


def _torch_of(requirements: Path) -> str:
    """The release that the run had, as W&B noted it."""
    lines = requirements.read_text().splitlines() if requirements.is_file() else []
    found = [line.partition("==")[2] for line in lines if line.startswith("torch==")]
    return found[0].strip() if found else ""


def from_file(path: Path) -> Iterator[PastRun]:
    """JSON (a list, or a run a line) with `config` and `summary`, or CSV as W&B's table exports it."""
    rows = _csv_rows(path) if path.suffix.lower() == ".csv" else _json_rows(path)
    for number, row in enumerate(rows, start=1):
        config = row.get("config") or nested(row)
        summary = row.get("summary") or row.get("summaryMetrics") or row
        yield PastRun(
            run_id=str(_first(row, IDS) or _first(row, NAMES) or number),
            name=str(_first(row, NAMES) or _first(row, IDS) or f"{path.stem}-{number}"),
            created_at=str(_first(row, CREATED) or ""),
            state=str(_first(row, STATES) or ""),
            config=_plain(config),
            summary=_plain(summary),
            source=f"wandb export {path.name}",
            gpu=str(row.get("gpu") or ""),
            n_gpus=int(row.get("gpu_count") or 0),
            torch=str(row.get("torch") or ""),
        )


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    text = path.read_text()
    try:
        document = json.loads(text)
    except ValueError:  # a run a line
        document = [json.loads(line) for line in text.splitlines() if line.strip()]
    yield from document if isinstance(document, list) else [document]


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Cells are JSON where they can be: numbers, lists, true and false; empty ones are left out."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            yield {name: _cell(text) for name, text in row.items() if name and text not in ("", None)}


def _cell(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def nested(row: Mapping[str, Any]) -> dict[str, Any]:
    """`model.n_layer` as W&B's table names it becomes model: {n_layer: ...}."""
    config: dict[str, Any] = {}
    for name, value in row.items():
        *above, last = name.split(".") if "/" not in name else [name]
        place = config
        for part in above:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                break
        else:
            place[last] = value
    return config


def typed(kind: type, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Tables know neither text from number (a card named 4090) nor null from nothing: as the dataclass has it."""
    hints, found = typing.get_type_hints(kind), dict(stored)
    for each in fields(kind):
        hint, value = hints[each.name], stored.get(each.name)
        is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        choices = typing.get_args(hint) if is_union else (hint,)
        within = next((choice for choice in choices if isinstance(choice, type) and is_dataclass(choice)), None)
        if within is not None and isinstance(value, dict):
            found[each.name] = typed(within, value)
        elif value is None and type(None) in choices:
            found[each.name] = None
        elif value is not None and str in choices and not isinstance(value, str):
            found[each.name] = str(value)
    return found


def _plain(config: Any) -> dict[str, Any]:
    """W&B's files keep every value as {value: ...}; its own keys are left out."""
    if isinstance(config, str):
        config = json.loads(config)
    return {
        name: value["value"]
        if isinstance(value, dict) and set(value) <= {"value", "desc"} and "value" in value
        else value
        for name, value in config.items()
        if name != "_wandb"
    }


def _first(row: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)
