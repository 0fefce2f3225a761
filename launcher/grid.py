"""`-m`: a grid of bills as one table; without dry_run, its rows are launched one after the other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from conf.compose import GridRow, Request
from conf.schema import Action, ReportChoice
from launcher.decide import planned
from preflight.bill import Bill, for_launch, make_bill
from preflight.errors import ConfigError, PreflightError, Problem
from preflight.machine.snapshot import probe
from preflight.report.render import bill_document, error_document, grid_error_row, grid_header, grid_row

WORST_FIRST = (2, 5, 4, 3, 6, 143, 130, 0)


def bills_and_runs(request: Request) -> int:
    """Every row has its line, also after one that fails; the worst exit code is returned."""
    _refuse_comparisons(request)
    as_json = request.grid[0].config.report is ReportChoice.json
    documents, codes = [], []
    if not as_json:
        print(grid_header())
    for row in request.grid:
        document, line, code = _row(row)
        documents.append(document)
        codes.append(code)
        if not as_json:
            print(line, flush=True)
    if as_json:
        print(json.dumps({"schema_version": 1, "rows": documents, "exit_code": _worst(codes)}))
    return _worst([_launch(row) for row in request.grid]) if not request.grid[0].config.dry_run else _worst(codes)


def _refuse_comparisons(request: Request) -> None:
    """A comparison is a table already."""
    if any(row.config.action is Action.compare for row in request.grid):
        message = "a grid of comparisons would be a table of tables"
        fix = "leave out -m and compare one job, or -m with hw=1x4090,8xh100 dry_run=true"
        raise ConfigError([Problem(path="action", value="compare", message=message, fix=fix)])


def _row(row: GridRow) -> tuple[dict[str, object], str, int]:
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


def _launch(row: GridRow) -> int:
    """A fresh process a job, so that none inherits memory or counters from the one before."""
    launch = Path(__file__).resolve().parents[1] / "launch.py"
    return subprocess.run([sys.executable, str(launch), *row.overrides], check=False).returncode


def _worst(codes: list[int]) -> int:
    return next((code for code in WORST_FIRST if code in codes), max(codes, default=0))
