"""`-m`: a grid of bills as one table; without dry_run, its rows are launched one after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conf.choices import Action, ReportChoice
from conf.compose import GridRow, Request
from conf.schema import Config
from launcher.decide import planned
from launcher.files import path_problems, write_whole
from launcher.output import complain, say
from preflight.bill import Bill, for_launch, make_bill
from preflight.errors import ConfigError, PreflightError, Problem
from preflight.machine.snapshot import probe
from preflight.planfile import newest_run
from preflight.report.document import bill_document, error_document
from preflight.report.grid import grid_csv, grid_error_row, grid_header, grid_row
from preflight.resolve.start import LATEST
from trainers.backends import local
from trainers.signals import PARENT_VARIABLE

Document = dict[str, Any]

INTERRUPTED = (130, 143)
WORST_FIRST = (2, 5, 4, 3, 6, 143, 130, 0)


def bills_and_runs(request: Request) -> int:
    """Every row has its line, also after one that fails; the worst exit code is returned."""
    _refuse_what_is_no_grid(request)
    as_json = request.grid[0].config.report is ReportChoice.json
    documents, codes = [], []
    if not as_json:
        say(grid_header())
    for row in request.grid:
        document, line, code = _row(row)
        documents.append(document)
        codes.append(code)
        if not as_json:
            say(line)
    if not request.grid[0].config.dry_run:
        documents, codes = _launch_all(request.grid, documents, as_json=as_json)
    document = {"schema_version": 1, "rows": documents, "exit_code": _worst(codes)}
    _write_files(request.grid[0].config, document)
    if as_json:
        say(json.dumps(document))
    return _worst(codes)


def _write_files(config: Config, document: Document) -> None:
    """The only thing that a grid of dry runs writes."""
    if config.grid.csv is not None:
        write_whole("grid.csv", config.grid.csv, grid_csv(document["rows"]).encode())
    if config.grid.json is not None:
        write_whole("grid.json", config.grid.json, (json.dumps(document, indent=1) + "\n").encode())


def _launch_all(rows: Sequence[GridRow], bills: list[Document], *, as_json: bool) -> tuple[list[Document], list[int]]:
    """One after the other; whoever interrupts a row means the grid."""
    documents, codes = list(bills), []
    group = f"grid-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
    rows = [_with_start(row) for row in rows]
    for index, row in enumerate(rows):
        code, document = _launch(row, group, as_json=as_json)
        codes.append(code)
        if document is not None:
            documents[index] = {"job": documents[index]["job"], **document}
        if code in INTERRUPTED and index + 1 < len(rows):
            complain(f"interrupted: {len(rows) - index - 1} rows of the grid were not started")
            break
    return documents, codes


def _with_start(row: GridRow) -> GridRow:
    """`trainer.init_from=latest` is the run that was newest before the grid, not the row before."""
    newest = newest_run(Path(row.config.runs_dir).expanduser()) if row.config.trainer.init_from == LATEST else None
    if newest is None:
        return row
    return replace(row, overrides=(*row.overrides, f"trainer.init_from={newest.absolute()}"))


def _refuse_what_is_no_grid(request: Request) -> None:
    """A comparison is a table already, and a frozen plan is one plan."""
    problems = []
    first = request.grid[0].config
    for option, name in (("grid.csv", first.grid.csv), ("grid.json", first.grid.json)):
        problems += [] if name is None else path_problems(option, name)
    for row in request.grid:
        frozen = {"plan": row.config.plan, "resume": row.config.resume}
        if row.config.action is Action.calibrate:
            message, fix = "measures one machine with one plan", "leave out -m"
            problems.append(Problem(path="action", value="calibrate", message=message, fix=fix))
        if row.config.action is Action.compare:
            message = "a grid of comparisons would be a table of tables"
            fix = "leave out -m and compare one job, or -m with hw=1x4090,8xh100 dry_run=true"
            problems.append(Problem(path="action", value="compare", message=message, fix=fix))
        for key, value in frozen.items():
            if value is not None:
                message = "a frozen plan is one plan, no grid"
                problems.append(Problem(path=key, value=value, message=message, fix=f"{key}={value} without -m"))
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


def _row(row: GridRow) -> tuple[Document, str, int]:
    """One bill as a document, a line and an exit code."""
    job = " ".join(row.varying) or "-"
    try:
        bill = make_bill(*planned(row.config, probe(Path(row.config.runs_dir)), row.overrides))
    except PreflightError as error:
        told = Problem(path="", value="", message=str(error), fix="")
        problems = error.problems if isinstance(error, ConfigError) else (told,)
        return {"job": job, **error_document(error.exit_code, problems)}, grid_error_row(job, error), error.exit_code
    bill = bill if row.config.dry_run else for_launch(bill)
    return {"job": job, **bill_document(bill)}, _line(job, bill), bill.exit_code


def _line(job: str, bill: Bill) -> str:
    return f"{grid_row(bill)}  {job}"


def _launch(row: GridRow, group: str, *, as_json: bool) -> tuple[int, Document | None]:
    """A fresh process a job, so that none inherits memory or counters from the one before; its document, if any."""
    launch = Path(__file__).resolve().parents[1] / "launch.py"
    grouping = [] if row.config.tracking.group else [f"tracking.group={group}"]
    own = [override for override in row.overrides if not override.lstrip("+").startswith("grid.")]
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(
            [sys.executable, str(launch), *own, *grouping],
            stdout=told if as_json else None,
            env=os.environ | {PARENT_VARIABLE: str(os.getpid())},
            start_new_session=True,
        )
        code = local.attend(process, row.config.launcher.grace_seconds + 10)
        told.seek(0)
        lines = told.read().splitlines()
    return code, json.loads(lines[-1]) if lines else None


def _worst(codes: list[int]) -> int:
    return next((code for code in WORST_FIRST if code in codes), max(codes, default=0))
