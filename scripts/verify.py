"""Do the outputs of a run exist, are they sound, do they agree with each other?

    scripts/verify.sh [RUN_DIR]          the newest run in runs/ when none is named
    make verify RUN=runs/...

Plan, metrics, measurements, checkpoints (every byte against its checksum), the ledger's line and the W&B files are held
against one another. One line a finding; exit code 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs from any folder

from preflight.actual import Actual, flat_actual
from preflight.errors import ExitCode, PreflightError
from preflight.plan import RunPlan
from preflight.planfile import read_json, to_jsonable
from preflight.record import read_ledger
from preflight.rundir import ACTUAL, PLAN, REPORT, faults_of
from scripts.wandb_files import Unreadable, read_run, run_folders

CLOSE = 1e-6  # of numbers that went through JSON
STOPPED_AND_SAVED = (ExitCode.OK, ExitCode.STOPPED_AT_BUDGET, ExitCode.INTERRUPTED, ExitCode.TERMINATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the folder says, as far as it can be read."""

    folder: Path
    plan: RunPlan
    document: dict[str, Any]  # of plan.json
    actual: Actual


def main(argv: Sequence[str] | None = None) -> int:
    """0 when all is well, 1 when something is wrong, 2 when there is no run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, help="run folder, or latest (the default)")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    options = parser.parse_args(argv)
    is_latest = options.run is None or (str(options.run) == "latest" and not options.run.exists())
    folder = newest(options.runs_dir) if is_latest else options.run
    if folder is None or not folder.is_dir():
        print(
            f"no run in {options.runs_dir if is_latest else options.run}; `python launch.py` makes one", file=sys.stderr
        )
        return ExitCode.CONFIG
    print(folder)
    problems = 0
    for what, found in findings(folder):
        problems += len(found)
        print(f"{'ok  ' if not found else 'FAIL'} {what}" + "".join(f"\n     {problem}" for problem in found))
    print("all outputs are there, sound, and agree" if not problems else f"{problems} problems")
    return 1 if problems else 0


def newest(runs_dir: Path) -> Path | None:
    """The youngest folder with a plan."""
    return max((path.parent for path in runs_dir.glob(f"*/{PLAN}")), default=None)


def findings(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """(what was looked at, what is wrong with it)."""
    try:
        plan = read_json(RunPlan, folder / PLAN, "plan")
        document = json.loads((folder / PLAN).read_text())
    except PreflightError as error:
        yield PLAN, [str(error)]
        return
    yield PLAN, [*faults_of(plan), *_plan_problems(document)]
    try:
        actual = read_json(Actual, folder / ACTUAL, "actual")
    except PreflightError as error:
        yield ACTUAL, [str(error)]
        return
    run = Run(folder=folder, plan=plan, document=document, actual=actual)
    yield ACTUAL, list(_actual_problems(run))
    yield REPORT, list(_report_problems(run))
    yield "metrics.jsonl", list(_metrics_problems(run))
    yield "checkpoints", list(_checkpoint_problems(run))
    yield "ledger", list(_ledger_problems(run))
    yield "tracking", list(_tracking_problems(run))


def _plan_problems(document: dict[str, Any]) -> list[str]:
    estimate = document.get("estimate") or {}
    missing = [name for name in ("estimate/wall_seconds", "estimate/peak_device_bytes") if estimate.get(name) is None]
    return [f"{name} is not there" for name in missing]


def _actual_problems(run: Run) -> Iterator[str]:
    """Sums, counts and products that must come out."""
    actual, trainer = run.actual, run.plan.trainer
    if actual.n_steps_done > trainer.n_steps or actual.first_step > actual.n_steps_done:
        yield f"steps {actual.first_step} to {actual.n_steps_done} of {trainer.n_steps}"
    if actual.exit_code == ExitCode.OK and actual.n_steps_done != trainer.n_steps:
        yield f"done, but after step {actual.n_steps_done} of {trainer.n_steps}"
    if actual.wall_seconds is not None:
        yield from _differs(
            "wall_seconds", actual.wall_seconds, "its terms' sum", sum(actual.wall_terms_seconds.values())
        )
    if actual.step_seconds and actual.tokens_per_second:
        tokens = actual.step_seconds * actual.tokens_per_second
        yield from _differs("tokens_per_step", trainer.tokens_per_step, "pace x step", tokens)
    for name, value in flat_actual(actual).items():
        if value is not None and (not math.isfinite(value) or value < 0):
            yield f"{name}={value}"


def _report_problems(run: Run) -> Iterator[str]:
    """The bill and, after the run, both sides of it."""
    path = run.folder / REPORT
    text = path.read_text() if path.is_file() else ""
    if not text.strip():
        yield "is missing or empty"
    elif "actual" not in text:
        yield "has no actual numbers beside the estimated ones"


def _metrics_problems(run: Run) -> Iterator[str]:
    """Whole lines, steps in their order, the last of each loss equal to what was measured."""
    path = run.folder / "metrics.jsonl"
    if not path.is_file():
        yield "is missing"
        return
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            row = json.loads(line)
            rows.append({**row, "step": int(row["step"])})
        except (ValueError, KeyError, TypeError) as error:
            yield f"line {number} is no row: {error!r}"
    steps = [row["step"] for row in rows]
    if steps != sorted(steps):
        yield "steps go back"
    if steps and steps[-1] > run.actual.n_steps_done:
        yield f"its last step is {steps[-1]}, {ACTUAL} knows {run.actual.n_steps_done}"
    for name, measured in (("train/loss", run.actual.train_loss), ("val/loss", run.actual.val_loss)):
        logged = [row[name] for row in rows if row.get(name) is not None]
        if run.actual.exit_code == ExitCode.OK and measured is not None:
            yield from _differs(f"last {name}", logged[-1] if logged else None, ACTUAL, measured)


def _checkpoint_problems(run: Run) -> Iterator[str]:
    """Every file against its checksums; the newest against plan, step and tracker."""
    from trainers import checkpoint

    files = checkpoint.all_in(run.folder)
    for path in files:
        fault = checkpoint.fault_of(path)
        if fault is not None:
            yield f"{path.name}: {fault}"
    for path in (run.folder / checkpoint.FOLDER).glob("*.tmp"):
        yield f"{path.name} is a torn write"
    if not files:
        if run.actual.exit_code in STOPPED_AND_SAVED:
            yield "there is none"
        return
    last = checkpoint.step_of(files[-1])
    if run.actual.exit_code in STOPPED_AND_SAVED and last != run.actual.n_steps_done:
        yield f"the newest is of step {last}, {ACTUAL} knows {run.actual.n_steps_done}"
    if checkpoint.fault_of(files[-1]) is None:
        saved = checkpoint.load(files[-1])
        if json.loads(saved["plan"])["model"] != to_jsonable(run.plan.model):
            yield f"{files[-1].name} is of another model than {PLAN}"
        if run.actual.exit_code == ExitCode.OK:
            yield from _differs("val_loss of the checkpoint", saved["val_loss"], ACTUAL, run.actual.val_loss)


def _ledger_problems(run: Run) -> Iterator[str]:
    """The last line of this run holds what the folder holds."""
    lines = [line for line in read_ledger(run.folder.parent).records if line["run_id"] == run.folder.name]
    if not lines:
        yield f"no line of {run.folder.name}"
        return
    line = lines[-1]
    if line["exit_code"] != run.actual.exit_code:
        yield f"exit_code {line['exit_code']}, {ACTUAL} has {run.actual.exit_code}"
    for side, there in (("estimate", run.document.get("estimate") or {}), ("actual", flat_actual(run.actual))):
        written = line[side] or {}
        for name in there.keys() & written.keys():  # lines of an older program lack what came later
            yield from _differs(f"{name} of the ledger", written[name], "the run folder", there[name])


def _tracking_problems(run: Run) -> Iterator[str]:
    """The tracked run that was noted is there, and holds both sides of the bill."""
    path, backend = run.folder / "tracking.json", run.plan.tracking.backend.name
    if not path.is_file():
        if backend != "none":
            yield f"tracking={backend}, but tracking.json is missing"
        return
    note = json.loads(path.read_text())["tracking"]
    if note.get("problem"):
        yield str(note["problem"])
    if note["backend"] != "wandb" or note["mode"] not in ("online", "offline"):
        return
    folders = [folder for folder in run_folders(run.folder / "wandb") if folder.name.endswith(f"-{note['run_id']}")]
    if not folders:
        yield f"no W&B files of run {note['run_id']}"
        return
    try:
        tracked = read_run(folders[-1])
    except Unreadable as error:
        yield str(error)
        return
    if tracked.state != ("finished" if run.actual.exit_code == ExitCode.OK else "failed"):
        yield f"W&B has the run as {tracked.state}"
    measured = flat_actual(run.actual)
    for name in ("actual/step_seconds", "actual/n_steps_done", "actual/val_loss"):  # no more changes after it was told
        yield from _differs(f"{name} in W&B", tracked.summary.get(name), ACTUAL, measured[name])
    for name, value in (run.document.get("estimate") or {}).items():
        yield from _differs(f"{name} in W&B", tracked.config.get(name), PLAN, value)


def _differs(what: str, one: Any, where: str, other: Any) -> Iterator[str]:
    if isinstance(one, int | float) and isinstance(other, int | float):
        if not math.isclose(one, other, rel_tol=CLOSE, abs_tol=CLOSE):
            yield f"{what} is {one}, {where} has {other}"
    elif one != other:
        yield f"{what} is {one}, {where} has {other}"


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
