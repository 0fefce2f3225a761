"""Which texts and lists of texts may the configuration hold? They end up in file names, on screens and in JSON."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from conf.schema import Config
from preflight.resolve.resolution import Resolution, value_at, with_value

RUNGS = ("batch", "loss_chunk", "checkpointing", "sharding", "optimizer", "precision", "model")  # least change first
USUAL_RUNGS = ("batch", "precision", "model")
NAME = re.compile(r"\w[\w.+-]{0,99}")
MAX_NAME_BYTES = 200  # file systems take 255, of which the time needs some
RUNG_LISTS = ("lowering.keep", "lowering.rungs")
LISTS = (*RUNG_LISTS, "tracking.tags", "compare.providers")
PLACES = {"runs_dir": "runs", "data.dir": "data"}  # and what they are by default
CALIBRATIONS = ("ledger", "off")


def check_texts(config: Config, resolution: Resolution) -> Config:
    """The problems are noted; the copy that comes back has texts that can be written and lists of texts."""
    for path in LISTS:
        config = _only_texts(config, path, resolution)
    for path, text in list(_texts(config)):
        if not _is_unicode(text):
            config = _refuse_bytes(config, path, text, resolution)
    for path, default in PLACES.items():
        config = _check_place(config, path, default, resolution)
    _check_name(config, resolution)
    for path in RUNG_LISTS:
        _check_rungs(config, path, resolution)
    _check_calibration(config, resolution)
    return config


def _only_texts(config: Config, path: str, resolution: Resolution) -> Config:
    given = value_at(config, path)
    if isinstance(given, list) and all(isinstance(item, str) for item in given):  # ${...} may lead to anything
        return config
    meant = [text for text in _flat(given) if re.fullmatch(r"[\w.+-]+", text)]
    if path in RUNG_LISTS:
        meant = [text for text in meant if text in RUNGS]
    fix = f"'{path}=[{','.join(meant)}]'"
    resolution.refuse(path, _as_list(given), "is a list of words, not of lists or empty values", fix)
    return with_value(config, path, [])


def _flat(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    elif value is not None and not isinstance(value, dict):
        yield str(value)


def _as_list(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_as_list, value))}]"
    return "null" if value is None else str(value)


def _texts(node: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """Every text with its path."""
    for option in fields(node):
        value = getattr(node, option.name)
        if is_dataclass(value):
            yield from _texts(value, f"{above}{option.name}.")
        elif isinstance(value, str):
            yield f"{above}{option.name}", value
        elif isinstance(value, list):
            yield f"{above}{option.name}", "".join(value)


def _is_unicode(text: str) -> bool:
    """Python keeps bytes that are no UTF-8 as half characters, which nothing can print."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _shown(text: str) -> str:
    return os.fsencode(text).decode(errors="backslashreplace")


def _refuse_bytes(config: Config, path: str, text: str, resolution: Resolution) -> Config:
    value = value_at(config, path)
    fix = f"'{path}=[]'" if isinstance(value, list) else f"{path}={PLACES.get(path, 'TEXT_IN_UTF-8')}"
    if path == "data.path":
        fix = "data.path=PATH, renamed or linked to a name in UTF-8"
    resolution.refuse(path, _shown(text), "has bytes that are no UTF-8, so it cannot be shown or recorded", fix)
    return with_value(config, path, [] if isinstance(value, list) else PLACES.get(path, "_"))


def _check_place(config: Config, path: str, default: str, resolution: Resolution) -> Config:
    """A folder, also by its full name: that of the folder we are in may be anything."""
    place = value_at(config, path)
    if not place.strip():
        resolution.refuse(path, place, "needs a folder", f"{path}={default}")
        return with_value(config, path, default)
    full = os.path.abspath(os.path.expanduser(place))
    if not _is_unicode(full):
        message = f"{_shown(full)} has bytes that are no UTF-8, so it cannot be shown or recorded"
        resolution.refuse(path, place, message, f"{path}=/tmp/{default}")
        return with_value(config, path, f"/tmp/{default}")
    return config


def _check_name(config: Config, resolution: Resolution) -> None:
    name = config.name
    if name is None or (NAME.fullmatch(name) and len(name.encode()) <= MAX_NAME_BYTES):
        return
    words = re.sub(r"[^\w.+-]+", "-", name).lstrip("-.+")[:100]
    cleaned = words.encode()[:MAX_NAME_BYTES].decode(errors="ignore").strip("-._+") or "run"
    message = f"is part of a folder's name: letters, digits, . _ + - only, 100 ({MAX_NAME_BYTES} bytes) at most"
    resolution.refuse("name", name, message, f"name={cleaned}")


def _check_rungs(config: Config, path: str, resolution: Resolution) -> None:
    given = value_at(config, path)
    known = list(dict.fromkeys(rung for rung in given if rung in RUNGS))
    fix = f"'{path}=[{','.join(known or USUAL_RUNGS[:2])}]'"
    unknown = [rung for rung in given if rung not in RUNGS]
    if unknown:
        message = f"no such rung: {', '.join(unknown)}; there are {', '.join(RUNGS)}"
        resolution.refuse(path, _as_list(given), message, fix)
    elif path == "lowering.rungs" and len(known) < len(given):
        resolution.refuse(path, _as_list(given), "names a rung twice; its place in the list is its order", fix)


def _check_calibration(config: Config, resolution: Resolution) -> None:
    """A ledger that was named is there."""
    place = config.calibration
    if place in CALIBRATIONS:
        return
    full = os.path.abspath(os.path.expanduser(place))
    ledger = os.path.join(full, "ledger.jsonl") if os.path.isdir(full) else full
    if not place.strip():
        message = "needs ledger, off, or a ledger's file"
    elif not os.path.exists(ledger):
        message = f"{ledger} does not exist"
    elif not os.path.isfile(ledger):
        message = f"{ledger} is not a regular file"
    elif not os.access(ledger, os.R_OK):
        message = f"{ledger} cannot be read: Permission denied"
    else:
        return
    resolution.refuse("calibration", place, message, "calibration=ledger")
