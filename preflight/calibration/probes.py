"""What did `action=calibrate` measure on this machine, and what of it holds for a plan? Lines of probes.jsonl.

A line counts when card (a CPU: this very processor and number of cores) and torch release are those of the plan. What
belongs to the host around the card (disk, links, launches) counts only for the machine that was looked at, and the disk
only for the folder of runs that was written to. Newer lines go first, field by field: a later look at one rank does not
forget what two ranks measured. Pure, but for `read_probes`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from preflight.hw_plan import CardKind, HwPlan, Measured
from preflight.plan import RunPlan
from preflight.planfile import PROBES_NAME, SCHEMA_VERSION

OF_THE_CARD = ("bandwidth_bytes_per_second",)
OF_THE_HOST = ("pass_seconds", "layer_seconds")
OF_THE_DISK = ("disk_write_bytes_per_second", "disk_read_bytes_per_second")
OF_THE_LINKS = ("bus_bytes_per_second", "bus_latency_seconds")
FASTEST, SLOWEST = 1e18, 1e-12  # beyond them a file was edited by hand, or damaged

Record = Mapping[str, Any]


def probes_path(place: Path) -> Path:
    """Beside the ledger: `place` is a ledger file, or the folder of runs that holds one."""
    return (place.parent if place.suffix == ".jsonl" else place) / PROBES_NAME


def read_probes(place: Path) -> tuple[Record, ...]:
    """The sound lines, oldest first; none without a file. A line that is torn counts for nothing."""
    path = probes_path(place)
    try:
        lines = path.read_bytes().splitlines() if path.is_file() else []
    except OSError:  # no file: nobody has calibrated here
        return ()
    return tuple(record for record in map(_parse, lines) if record is not None)


def _parse(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    is_ours = isinstance(record, dict) and record.get("schema_version") == SCHEMA_VERSION
    return record if is_ours and isinstance(record.get("found"), dict) else None


def probe_record(plan: RunPlan, found: Mapping[str, Any]) -> dict[str, Any]:
    """The line of one measurement: which machine, when, what."""
    return {
        "schema_version": SCHEMA_VERSION,
        "created_at": plan.created_at,
        "command": plan.command,
        "machine": _machine(plan.hw),
        "torch": _release(plan.software.torch),
        "runs_dir": plan.runs_dir,
        "found": dict(found),
    }


def with_probes(plan: RunPlan, records: Sequence[Record]) -> RunPlan:
    """The plan on its machine as measured; unchanged when nobody measured it."""
    measured = _measured(plan, records)
    if measured is None:
        return plan
    told = f"measured by action=calibrate on {measured.as_of}"
    provenance = dict(plan.provenance)
    if measured.matmul_flops_per_second or measured.bandwidth_bytes_per_second is not None:
        provenance["hw.card rates"] = told
    if measured.disk_write_bytes_per_second is not None:
        provenance["hw.disk_bytes_per_second"] = told
    disk = measured.disk_write_bytes_per_second or plan.hw.disk_bytes_per_second
    return replace(plan, hw=replace(plan.hw, measured=measured, disk_bytes_per_second=disk), provenance=provenance)


def _measured(plan: RunPlan, records: Sequence[Record]) -> Measured | None:
    numbers: dict[str, float] = {}
    matmul: dict[str, float] = {}
    as_of = ""
    for record in reversed(records):
        try:
            names = _names_that_hold(plan, record)
            found, day = record["found"], str(record["created_at"])[:10]
            rates = _best_rates(found.get("matmul", ())) if names else {}
        except (KeyError, TypeError, ValueError, AttributeError):  # of another shape: an older program's
            continue
        matmul = rates | matmul
        numbers = {name: found[name] for name in names if _is_sound(found.get(name))} | numbers
        as_of = max(as_of, day) if names else as_of
    if not matmul and not numbers:
        return None
    rest = {field.name: numbers.get(field.name) for field in fields(Measured) if field.name not in _NAMED}
    return Measured(as_of=as_of, matmul_flops_per_second=matmul, **rest)


_NAMED = ("as_of", "matmul_flops_per_second")


def _names_that_hold(plan: RunPlan, record: Record) -> tuple[str, ...]:
    """Which fields of the record speak of the plan's machine; none: it is another card or torch release."""
    theirs, mine = record["machine"], _machine(plan.hw)
    identity = ("label", "n_cpu_cores") if plan.hw.card.kind is CardKind.cpu else ("name",)
    if record["torch"] != _release(plan.software.torch) or any(theirs[key] != mine[key] for key in identity):
        return ()
    names: tuple[str, ...] = OF_THE_CARD
    if plan.hw.detected and theirs["n_cpu_cores"] == mine["n_cpu_cores"]:
        names += OF_THE_HOST
        if record["runs_dir"] == plan.runs_dir:
            names += OF_THE_DISK
        if record["found"].get("n_ranks") == plan.hw.n_gpus_per_node:
            names += OF_THE_LINKS
    return names


def _machine(hw: HwPlan) -> dict[str, Any]:
    return {"name": hw.card.name, "label": hw.card.label, "n_cpu_cores": hw.n_cpu_cores}


def _release(torch: str | None) -> str:
    """Builds of one release (+cpu, +cu130) count as one: the card tells them apart."""
    return (torch or "").partition("+")[0]


def _best_rates(rows: Sequence[Record]) -> dict[str, float]:
    """By precision, over the sizes."""
    best: dict[str, float] = {}
    for row in rows:
        rate = row["flops_per_second"]
        if _is_sound(rate):
            best[row["precision"]] = max(rate, best.get(row["precision"], 0.0))
    return best


def _is_sound(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and SLOWEST <= value <= FASTEST
