"""Bring the measurements of past W&B runs into the ledger, so that a team's history calibrates from day one.

    python scripts/import_wandb.py ENTITY/PROJECT              from the server that `wandb login` knows
    python scripts/import_wandb.py wandb/ | runs/              offline runs on this disk
    python scripts/import_wandb.py export.csv | export.json    tables and lists that were exported

Runs of preflight come whole: plan, bill and measurements. Of nanoGPT's and the Hugging Face Trainer's the plan is
worked out from their config (say --card and --torch where the run does not tell). What is there already is left alone,
so that it can be run again.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs from any folder

from preflight.errors import ExitCode, PreflightError
from preflight.ledger_line import LEDGER_VERSION, sound_line
from preflight.plan import RunPlan
from preflight.planfile import to_jsonable
from preflight.record import append_line, ledger_path, read_ledger
from scripts.foreign_runs import NotUnderstood, understood
from scripts.past_runs import PastRun, from_api, from_file, from_folder, typed
from scripts.wandb_files import Unreadable

PARTS = ("model", "trainer", "hw", "software", "tracking")  # of a config that preflight wrote


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 when nothing could be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", help="ENTITY/PROJECT, a folder, or a .csv, .json or .jsonl file")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), help="folder of runs, or a ledger file")
    parser.add_argument("--card", help="what foreign runs ran on: a100_80gb, or 8xa100_80gb")
    parser.add_argument("--torch", help="the torch release that foreign runs had, such as 2.9.1")
    options = parser.parse_args(argv)
    path = ledger_path(options.runs_dir)
    ledger = read_ledger(path)
    if ledger.warnings and not ledger.records:
        print(f"{path} is no ledger of ours: {ledger.warnings[0]}", file=sys.stderr)
        return ExitCode.CONFIG
    known = {record["run_id"] for record in ledger.records} | {record.get("imported") for record in ledger.records}
    n_new = n_known = n_left_out = 0
    try:
        for run in past_runs(options.place):
            line = line_of(run, options.card, options.torch)
            if isinstance(line, str):
                n_left_out += 1
                print(f"left out {run.name}: {line}", file=sys.stderr)
            elif known & {line["run_id"], line["imported"]}:
                n_known += 1
            else:
                append_line(path, line)
                known |= {line["run_id"], line["imported"]}
                n_new += 1
    except _failures() as error:
        is_here = Path(options.place).exists()
        what = "cannot be read" if is_here else "is no folder or file here, and no project that can be read"
        print(f"{options.place} {what}: {error}", file=sys.stderr)
        return ExitCode.CONFIG
    print(f"{n_new} runs imported into {path}, {n_known} were there already, {n_left_out} left out")
    return ExitCode.OK if n_new or n_known else ExitCode.CONFIG


def _failures() -> tuple[type[Exception], ...]:
    """What files and servers that cannot be read raise."""
    import wandb
    from wandb.sdk.lib.service.service_connection import WandbApiFailedError

    return (OSError, ValueError, Unreadable, wandb.Error, WandbApiFailedError)


def past_runs(place: str) -> Iterator[PastRun]:
    """A folder or a file when there is one of that name, else a project on the server."""
    path = Path(place)
    if path.is_dir():
        return from_folder(path)
    if path.is_file():
        return from_file(path)
    if not re.fullmatch(r"[^/]+/[^/]+", place):  # no server needs to be asked
        raise FileNotFoundError("a project is named ENTITY/PROJECT")
    return from_api(place)


def line_of(run: PastRun, card: str | None, torch: str | None) -> dict[str, Any] | str:
    """A line of the ledger, or why there is none."""
    if run.state in ("running", "pending"):
        return "it has not ended"
    line = _own(run) if all(isinstance(run.config.get(part), dict) for part in PARTS) else _foreign(run, card, torch)
    return sound_line(line) if isinstance(line, dict) else line


def _own(run: PastRun) -> dict[str, Any] | str:
    """Plan, bill and measurements as they were logged."""
    actual = {name: value for name, value in run.summary.items() if name.startswith("actual/")}
    if not isinstance(actual.get("actual/n_steps_done"), int | float):
        return "it was not measured: no actual/n_steps_done in its summary"
    config = typed(RunPlan, run.config)
    bill = {name: config.pop(name) for name in list(config) if name.startswith("estimate/")}
    return _line(run, config, bill, actual, run_id=run.name)


def _foreign(run: PastRun, card: str | None, torch: str | None) -> dict[str, Any] | str:
    """No bill was made before it, so there is none in the line."""
    release = torch or run.torch
    if not release:
        return "its torch release is not told: give --torch, such as --torch 2.9.1"
    try:
        plan, measured = understood(run, card)
    except (NotUnderstood, PreflightError, KeyError, ValueError) as error:
        return " ".join(str(error).split())
    plan = replace(plan, software=replace(plan.software, torch=release))
    actual = {f"actual/{name}": value for name, value in measured.items()} | {"actual/first_step": 0}
    return _line(run, to_jsonable(plan), {}, actual, run_id=f"{run.name}-{run.run_id}")


def _line(
    run: PastRun, plan: dict[str, Any], bill: dict[str, Any], actual: dict[str, Any], *, run_id: str
) -> dict[str, Any]:
    return {
        "schema_version": LEDGER_VERSION,
        "run_id": run_id,
        "name": str(plan.get("name") or run.name),
        "created_at": str(plan.get("created_at") if bill else run.created_at),
        "run_dir": None,
        "command": plan.get("command"),
        "decision": "go",
        "exit_code": int(ExitCode.OK if run.state in ("finished", "") else ExitCode.TRAINING_FAILED),
        "exit_reason": str(run.summary.get("exit_reason") or run.state),
        "plan": plan,
        "estimate": bill,
        "actual": actual,
        "device": plan["hw"]["card"].get("label"),
        "imported": f"{run.source} {run.run_id}",
    }


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
