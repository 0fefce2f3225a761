"""Which line of the ledger can be believed, and how is one read that an older program wrote?

A ledger lives for years and is copied between machines: lines of every earlier version are migrated when they are read
(the file is never rewritten), those of a later one are skipped with a warning, and so is a line whose plan holds what
no plan can hold. Nothing in a ledger ends a bill.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from functools import cache
from typing import Any

from preflight import hw_plan
from preflight import plan as plans

LEDGER_VERSION = 2
LARGEST_COUNT = 10**15  # beyond it a file was edited by hand, or damaged
TEXTS = ("run_id", "name", "created_at", "decision")
COUNTS = {
    "model": ("n_layer", "n_head", "n_kv_head", "n_embd", "d_ff", "vocab_size"),
    "trainer": ("micro_batch_size", "grad_accum_steps", "tokens_per_step", "sequence_length", "n_steps"),
    "hw": ("n_nodes", "n_gpus_per_node"),
}
PARTS = {
    "model": plans.ModelPlan,
    "trainer": plans.TrainerPlan,
    "hw": hw_plan.HwPlan,
    "tracking": plans.TrackingPlan,
    "software": plans.Software,
}
Line = dict[str, Any]
Test = Callable[[Any], bool]


def sound_line(document: Any) -> Line | str:
    """The line in today's form, or why it is not one."""
    if not isinstance(document, dict) or not isinstance(document.get("plan"), dict):
        return "not a record of ours"
    version = document.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        return "not a record of ours"
    if version > LEDGER_VERSION:
        return f"schema_version {version} is of a newer preflight; this one reads up to {LEDGER_VERSION}"
    try:
        line = migrated(document)
        faults = list(_faults(line))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return f"not a record of ours: {error!r}"
    return line if not faults else "; ".join(faults[:3])


def migrated(line: Line) -> Line:
    """Step by step to LEDGER_VERSION; the line that came in stays as it was."""
    for version in range(line["schema_version"], LEDGER_VERSION):
        line = MIGRATIONS[version](line) | {"schema_version": version + 1}
    return line


def _from_1(line: Line) -> Line:
    """Version 1 knew norm, positions and activation by the family alone."""
    plan, model = line["plan"], line["plan"].get("model", {})
    parts = {"norm": "rmsnorm", "positions": "rotary", "activation": "swiglu"} if model.get("family") == "llama" else {}
    return line | {"plan": plan | {"model": parts | model}}


MIGRATIONS: Mapping[int, Callable[[Line], Line]] = {1: _from_1}


def _faults(line: Line) -> Iterator[str]:
    for name in TEXTS:
        if not isinstance(line.get(name), str):
            yield f"{name}={_short(line.get(name))} is no text"
    if isinstance(line.get("exit_code"), bool) or not isinstance(line.get("exit_code"), int):
        yield f"exit_code={_short(line.get('exit_code'))} is no number"
    for side in ("estimate", "actual"):
        if not isinstance(line.get(side), dict) and (side == "estimate" or line.get(side) is not None):
            yield f"{side} is no list of numbers"
    for part, kind in PARTS.items():
        yield from _part_faults(part, kind, line["plan"].get(part))


def _part_faults(part: str, kind: type, stored: Any) -> Iterator[str]:
    """Values of the wrong type, names that this program does not know, counts that cannot be."""
    if not isinstance(stored, dict):
        yield f"plan.{part} is missing"
        return
    counts = COUNTS.get(part, ())
    for field, tests, is_required in _tests(kind):
        if field not in stored:
            if is_required and part == "model":
                yield f"plan.{part}.{field} is missing"
            continue
        value = stored[field]
        if not any(fits(value) for fits in tests) or (field in counts and not 1 <= value <= LARGEST_COUNT):
            yield f"plan.{part}.{field}={_short(value)} cannot be"


@cache
def _tests(kind: type) -> tuple[tuple[str, tuple[Test, ...], bool], ...]:
    """Of each field: its name, what its JSON value may be, whether it was there from the start."""
    return tuple(
        (field.name, tuple(_test(name) for name in str(field.type).split(" | ")), field.default is MISSING)
        for field in fields(kind)
    )


def _test(name: str) -> Test:
    """Dataclasses within the parts are looked at where they are used."""
    if name in PLAIN:
        return PLAIN[name]
    if name.startswith("tuple"):
        return lambda value: isinstance(value, list)
    kind = getattr(plans, name, None) or getattr(hw_plan, name, None)
    if isinstance(kind, type) and issubclass(kind, Enum):
        members = kind.__members__
        return lambda value: isinstance(value, str) and value in members
    return lambda value: isinstance(value, dict)


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e30 and math.isfinite(value)
    )


PLAIN: Mapping[str, Test] = {
    "None": lambda value: value is None,
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "bool": lambda value: isinstance(value, bool),
    "float": _is_number,
    "str": lambda value: isinstance(value, str),
}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
