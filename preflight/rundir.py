"""The folder of a run: made once, found again for `resume=`, and its plan.json, from which a bill is replayed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from preflight.actual import NUMBERS, Actual
from preflight.bill import Bill, make_bill
from preflight.errors import ConfigError, ExitCode, Problem
from preflight.flat import flat_estimate
from preflight.plan import RunPlan
from preflight.planfile import read_json, write_json
from preflight.verdict.judge import Finding

PLAN = "plan.json"
ACTUAL = "actual.json"
REPORT = "report.txt"
UNMEASURED = tuple(name for name in NUMBERS if name not in ("n_steps_done", "first_step", "energy_is_measured"))
CHECKPOINTS = "checkpoints/step_*.pt"


def create(plan: RunPlan) -> Path:
    """`<runs_dir>/<time with microseconds>-<name>/`; never an existing folder."""
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", plan.name)
    folder = Path(plan.runs_dir) / f"{moment}-{name}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        message = f"the run folder cannot be made: {error.strerror}"
        raise ConfigError(
            [Problem(path="runs_dir", value=plan.runs_dir, message=message, fix="runs_dir=A_FOLDER_YOU_CAN_WRITE_TO")]
        ) from error
    return folder


def plan_document(bill: Bill, findings: tuple[Finding, ...]) -> dict[str, Any]:
    """What ranks read and `plan=FILE` replays: the plan that runs, the plan as asked for, and what was found."""
    step, rates = bill.estimate.step, bill.estimate.cost.rates
    return {
        "plan": bill.plan,
        "asked_plan": bill.asked_plan or bill.plan,
        "findings": findings,
        "changes": bill.verdict.changes,
        "estimate": flat_estimate(bill.estimate),
        "running": {
            "flops_per_step": step.flops_per_step,
            "peak_flops_per_second": step.peak_flops_per_second,
            "usd_per_hour": rates.usd_per_hour,
            "watts": rates.watts,
        },
    }


def write_plan(document: Mapping[str, Any], run_dir: Path) -> None:
    """Exclusively: two runs never share a folder."""
    write_json(document, run_dir / PLAN, exclusive=True)


def replay(path: Path) -> tuple[Bill, tuple[Finding, ...]]:
    """The bill that was printed when this plan was frozen, worked out again from the file alone."""
    findings = read_json(tuple[Finding, ...], path, "findings")
    return make_bill(read_json(RunPlan, path, "asked_plan"), findings), findings


def find(which: str, runs_dir: Path) -> Path:
    """The run folder that `resume=` names; `latest` is the newest one with a checkpoint."""
    folder = _latest(runs_dir) if which == "latest" else Path(which).expanduser().resolve()
    if folder is not None and (folder / PLAN).is_file():
        return folder
    message = f"no run with a checkpoint in {runs_dir}" if which == "latest" else f"{folder} has no {PLAN}"
    known = [str(path.parent) for path in sorted(runs_dir.glob(f"*/{PLAN}"), reverse=True)[:3]]
    fix = f"resume={known[0]}" if known else "train first: python launch.py"
    raise ConfigError([Problem(path="resume", value=which, message=message, fix=fix)])


def _latest(runs_dir: Path) -> Path | None:
    folders = sorted((path.parent for path in runs_dir.glob(f"*/{PLAN}")), reverse=True)
    return next((folder for folder in folders if next(folder.glob(CHECKPOINTS), None)), None)


def read_actual(run_dir: Path) -> Actual | None:
    """What the trainer measured; None when it ended before it could write."""
    path = run_dir / ACTUAL
    return read_json(Actual, path, "actual") if path.is_file() else None


def write_actual(run_dir: Path, actual: Actual) -> None:
    """What the trainer did not live to write."""
    write_json({"actual": actual}, run_dir / ACTUAL)


def forget_actual(run_dir: Path) -> None:
    """A resumed run measures anew; the ledger keeps what the earlier segment measured."""
    (run_dir / ACTUAL).unlink(missing_ok=True)


def is_finished(run_dir: Path) -> bool:
    """The last segment came to its last step."""
    actual = read_actual(run_dir)
    return actual is not None and actual.exit_code == ExitCode.OK


def unmeasured(plan: RunPlan, run_dir: Path, exit_code: int, reason: str, failed_rank: int | None) -> Actual:
    """All that is known of a run whose trainer died: how far its log goes, and why."""
    unknown: dict[str, Any] = dict.fromkeys(UNMEASURED)
    return Actual(
        **unknown,
        wall_terms_seconds={},
        n_steps_done=_last_logged_step(run_dir),
        exit_code=exit_code,
        exit_reason=reason,
        failed_rank=failed_rank,
        device=plan.hw.card.label,
        torch=plan.software.torch or "unknown",
    )


def _last_logged_step(run_dir: Path) -> int:
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    whole = [line for line in lines if line.startswith("{") and line.endswith("}")]
    return int(json.loads(whole[-1])["step"]) if whole else 0
