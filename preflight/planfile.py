"""Frozen dataclasses to JSON and back. `plan.json` is what ranks read and what `plan=FILE` replays."""

from __future__ import annotations

import json
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from preflight.errors import ConfigError, Problem

T = TypeVar("T")

SCHEMA_VERSION = 1
PLAN_NAME, CHECKPOINT_FILES = "plan.json", "checkpoints/step_*.pt"  # in the folder of a run
LEDGER_NAME, PROBES_NAME = "ledger.jsonl", "probes.jsonl"  # in a folder of runs: what happened, what was measured


def to_jsonable(value: Any) -> Any:
    """Dataclasses become objects, enums their names, tuples lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_jsonable(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return int(value) if isinstance(value, int) else value.name
    if isinstance(value, Mapping):
        return {str(k): to_jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_jsonable(v) for v in value]
    return value


def from_jsonable(kind: Any, value: Any) -> Any:
    """The inverse of `to_jsonable` for a type hint; raises KeyError, TypeError or ValueError on foreign data."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else from_jsonable(_the_other(kind), value)
    if origin is tuple:
        return tuple(from_jsonable(typing.get_args(kind)[0], v) for v in value)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise TypeError(f"expected names with values, got {value!r}")
        return {k: from_jsonable(typing.get_args(kind)[1], v) for k, v in value.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{f.name: from_jsonable(hints[f.name], value[f.name]) for f in fields(kind) if _is_told(f, value)})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind[value]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is not Any and not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return value


def _is_told(field: Field[Any], value: Any) -> bool:
    """A file from before there was such a field means its default."""
    return field.name in value or (field.default is MISSING and field.default_factory is MISSING)


def _the_other(kind: Any) -> Any:
    return next(arg for arg in typing.get_args(kind) if arg is not types.NoneType)


def read_json(kind: type[T], path: Path, key: str) -> T:
    """The dataclass stored under `key` of the JSON document at `path`; ConfigError when it is not one of ours."""
    try:
        document = json.loads(path.read_text())
        version = document["schema_version"]
        if version != SCHEMA_VERSION:
            raise ValueError(f"schema_version {version}, this program reads {SCHEMA_VERSION}")
        return typing.cast("T", from_jsonable(kind, document[key]))
    except OSError as error:
        message = error.strerror or str(error)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        message = f"not a file of ours: {error}"
    raise ConfigError([Problem(path="plan", value=str(path), message=message, fix="plan=RUN_DIR/plan.json")])


def newest_run(runs_dir: Path) -> Path | None:
    """The newest folder in which there is a checkpoint, by its name, which begins with the time."""
    folders = sorted((path.parent for path in runs_dir.glob(f"*/{PLAN_NAME}")), reverse=True)
    return next((folder for folder in folders if next(folder.glob(CHECKPOINT_FILES), None)), None)


def write_json(document: Mapping[str, Any], path: Path, *, exclusive: bool = False) -> None:
    """One JSON document, whole or not at all; `exclusive` raises FileExistsError when there is one already."""
    text = json.dumps({"schema_version": SCHEMA_VERSION, **{k: to_jsonable(v) for k, v in document.items()}}, indent=1)
    temporary = path.with_name(path.name + f".{os.getpid()}.tmp")
    try:
        with temporary.open("w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        if exclusive:
            _link(temporary, path)
        else:
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _link(temporary: Path, path: Path) -> None:
    """A link never replaces; file systems without links (buckets, exFAT) leave a moment between look and rename."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        if path.exists():
            raise FileExistsError(path) from None
        temporary.replace(path)
