"""Can the run write where it will want to: its folder, token files that are prepared at launch, a tracker's files?

Asked before anything starts, since a rank finds out only after it has loaded PyTorch. Nothing is written by asking.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from conf.choices import Tokenizer, TrackingBackend
from preflight.checks.cards import missing_cards
from preflight.checks.facts import PREPARED_AT_LAUNCH
from preflight.checks.finding import warning
from preflight.dataset import ITEM_BYTES, is_in_the_way, smallest_dtype
from preflight.errors import ExitCode
from preflight.machine.snapshot import Machine, disk_free_bytes, existing_part, is_of_the_kernel, is_open
from preflight.plan import RunPlan
from preflight.rundir import PLAN
from preflight.units import format_bytes
from preflight.verdict.judge import Finding, Severity

GPT2_TOKENS_PER_BYTE = 0.5  # at most, of ordinary text (trainers.encoders)
TRACKERS_FOLDERS = {
    TrackingBackend.none: (),
    TrackingBackend.wandb: ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"),  # its other files lie in the run's folder
    TrackingBackend.trackio: ("TRACKIO_DIR",),
}


def closed_places(plan: RunPlan, machine: Machine, *, is_dry: bool) -> tuple[Finding, ...]:
    """Each with one that is open; nothing where the cards of the bill are not here."""
    if missing_cards(plan, machine):
        return ()
    return (*_runs(plan), *_data(plan), *(() if is_dry else _tracking(plan)))


def _runs(plan: RunPlan) -> Iterator[Finding]:
    place = plan.runs_dir
    if is_open(place):
        return
    if os.path.exists(os.path.join(place, PLAN)):
        elsewhere = _open_place("runs")
        fix = f"{shlex.join(['cp', '-r', place, elsewhere])}, then resume={elsewhere}/{os.path.basename(place)}"
        yield _error("resume", f"resume={place}, where the run goes on, {_why_closed(place)}", fix)
    else:
        message = f"runs_dir={place}, where the run is kept, {_why_closed(place)}"
        yield _error("runs_dir", message, f"runs_dir={_open_place('runs')}")


def _data(plan: RunPlan) -> Iterator[Finding]:
    """Of token files that are there, reading is enough."""
    data = plan.data
    if data.prepared or data.kind not in PREPARED_AT_LAUNCH:
        return
    folder = os.path.dirname(data.dir)
    elsewhere = f"data.dir={_open_place('data')}"
    if is_in_the_way(Path(data.dir)):
        message = f"{data.dir} is in the way, and not prepared data (no manifest.json)"
        yield _error("data.dir", message, f"{shlex.join(['mv', data.dir, data.dir + '.old'])}, or {elsewhere}")
    elif not is_open(folder):
        message = f"data.dir={folder}, where {data.name} would be prepared, {_why_closed(folder)}"
        yield _error("data.dir", message, elsewhere)
    elif data.n_source_bytes is not None:
        n_tokens = data.n_source_bytes * (GPT2_TOKENS_PER_BYTE if _is_gpt2(plan) else 1.0)
        needed, free = int(n_tokens) * ITEM_BYTES[smallest_dtype(plan.model.vocab_size)], disk_free_bytes(Path(folder))
        if needed > free:
            message = f"token files of {data.name} take up to {format_bytes(needed)}, {folder} has {format_bytes(free)}"
            yield _error("data.dir", message, "data.dir= on a larger volume")


def _is_gpt2(plan: RunPlan) -> bool:
    return plan.data.tokenizer_path is None and plan.model.tokenizer is Tokenizer.gpt2


def _tracking(plan: RunPlan) -> Iterator[Finding]:
    """Training is the same without it, so it goes on."""
    for name in TRACKERS_FOLDERS[plan.tracking.backend]:
        folder = os.environ.get(name)
        if folder and not is_open(folder):
            who = plan.tracking.backend.name
            message = f"{name}={folder}, where {who} writes, {_why_closed(folder)}: the run may go untracked"
            yield warning("place.tracking", message, f"unset {name}, or tracking=none")


def _why_closed(place: str) -> str:
    """Of what exists of it, as a verb phrase."""
    there = existing_part(place)
    if not os.path.isdir(there):
        return f"cannot be made: {there} is a file"
    is_all = there == os.path.abspath(os.path.expanduser(place))
    where = "cannot be written to" if is_all else f"cannot be made in {there}"
    if is_of_the_kernel(there):
        return f"{where}: its file system keeps no files"
    is_read_only = hasattr(os, "statvfs") and bool(os.statvfs(there).f_flag & os.ST_RDONLY)
    return f"{where}: {'read-only file system' if is_read_only else 'permission denied'}"


def _open_place(name: str) -> str:
    """The first of the usual places that takes files."""
    usual = (os.path.abspath(name), os.path.expanduser(f"~/preflight/{name}"))
    temporary = os.path.join(tempfile.gettempdir(), "preflight", name)
    return next((place for place in (*usual, temporary) if is_open(place)), "A_FOLDER_YOU_CAN_WRITE_TO")


def _error(check: str, message: str, fix: str) -> Finding:
    return Finding(check=f"place.{check}", severity=Severity.error, message=message, fix=fix, exit_code=ExitCode.CONFIG)
