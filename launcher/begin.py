"""From a bill to a run's folder, and runs whose plan is frozen already: `plan=FILE`, `resume=RUN_DIR`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from conf.choices import ReportChoice
from conf.compose import Request
from conf.schema import Config
from launcher.answer import Answer
from launcher.decide import found
from launcher.finish import record
from launcher.killed import record_killed
from launcher.new_budget import budget_options, freeze, of_resumed, plan_within, refuse_past_deadline
from launcher.output import complain, say
from preflight import rundir
from preflight.bill import Bill, for_launch, make_bill
from preflight.errors import ConfigError, ExitCode, Problem
from preflight.machine.snapshot import Machine
from preflight.plan import RunPlan
from preflight.planfile import read_json
from preflight.report.document import error_document
from preflight.report.render import render
from preflight.spent import remember
from preflight.verdict.judge import Finding

FROZEN_KEYS = ("plan", "resume", "dry_run", "report", "runs_dir")  # a frozen plan takes no other override


def go_on(config: Config, machine: Machine, request: Request) -> Answer:
    """`plan=FILE` and `resume=RUN_DIR`: nothing is decided anew, so no other override has a meaning."""
    given, limits = _given(config, request)
    folder = None
    if config.resume is not None:
        folder = rundir.find(config.resume, Path(config.runs_dir).expanduser().resolve())
    bill, findings = rundir.replay(folder / rundir.PLAN if folder else Path(config.plan or ""))
    if not config.dry_run:
        place = folder or Path(config.runs_dir if "runs_dir" in given else bill.plan.runs_dir).expanduser().resolve()
        findings = found(replace(bill.plan, runs_dir=str(place)), machine, is_dry=False)
        bill = make_bill(bill.asked_plan or bill.plan, findings)
    if folder is not None and limits:
        bill = make_bill(plan_within(config, folder, limits), findings)
    if folder is None and "runs_dir" in given:
        bill = _recorded_in(bill, str(Path(config.runs_dir).expanduser().resolve()))
    if folder is not None and rundir.is_finished(folder):
        anew = f"To go on from its weights: {rundir.started_from(folder)}, a new run"
        word = f"{folder} is finished; nothing to resume\n  {anew}"
        as_json = config.report is ReportChoice.json
        say(json.dumps({**error_document(ExitCode.OK, ()), "message": word}) if as_json else word)
        return Answer(exit_code=ExitCode.OK)
    if not config.dry_run:
        refuse_past_deadline(bill.plan, f"resume={folder}" if folder else "plan=")
    if folder is not None:
        complain(f"resuming {folder}; the bill is that of the whole run")
        bill = of_resumed(bill)
    return begin(config, bill, findings, folder)


def _given(config: Config, request: Request) -> tuple[set[str], list[str]]:
    """What was typed beside `plan=` or `resume=`, and which limits of a run that is resumed; ConfigError: too much."""
    given = {line.lstrip("+~").partition("=")[0] for line in request.overrides}
    limits = budget_options(given) if config.resume else []
    if extra := sorted(given.difference(FROZEN_KEYS, {f"budget.{limit}" for limit in limits})):
        message = f"a frozen plan takes only {', '.join(FROZEN_KEYS)}" + " and budget.*" * (config.resume is not None)
        typed = dict(line.lstrip("+~").partition("=")[::2] for line in request.overrides)
        fixes = {key: _cure(f"{key}={typed[key]}", key, config) for key in extra}
        raise ConfigError([Problem(path=key, value=typed[key], message=message, fix=fixes[key]) for key in extra])
    for key, value in (("resume", config.resume), ("plan", config.plan)):
        if value is not None and not value.strip():
            fix = "resume=latest" if key == "resume" else "plan=RUN_DIR/plan.json"
            raise ConfigError([Problem(path=key, value=value, message="names nothing", fix=fix)])
    return given, limits


def _cure(override: str, key: str, config: Config) -> str:
    """What else is wanted of a run is wanted of a new one, which may begin with its weights."""
    leave_out = f"leave out {key}"
    if config.resume is None:
        return leave_out
    folder = rundir.find(config.resume, Path(config.runs_dir).expanduser().resolve())
    if rundir.newest_checkpoint(folder) is None:
        return leave_out
    anew = f"in place of resume=, {rundir.started_from(folder)} {override}: a new run from its weights"
    return anew if rundir.is_finished(folder) else f"{leave_out}, or {anew}"


def begin(config: Config, bill: Bill, findings: tuple[Finding, ...], folder: Path | None = None) -> Answer:
    """Print the bill; unless that is all that was asked for or the answer is no, make the run's folder."""
    bill = bill if config.dry_run else for_launch(bill)
    as_json = config.report is ReportChoice.json
    starts = not config.dry_run and bill.exit_code == ExitCode.OK
    if not (as_json and starts):  # then the one document comes at the end
        say(render(bill, config.report).removesuffix("\n"))
    if not starts:
        if not config.dry_run and bill.exit_code != ExitCode.CONFIG:
            record(bill, None, None, bill.exit_code, bill.verdict.decision.name)
        return Answer(exit_code=bill.exit_code, bill=bill, as_json=as_json)
    record_killed(Path(bill.plan.runs_dir))
    if folder is not None:
        lock = rundir.claim(folder)
        if bill.plan.budget != read_json(RunPlan, folder / rundir.PLAN, "plan").budget:
            freeze(bill, findings, folder)
        remember(folder, rundir.read_actual(folder))
        rundir.forget_actual(folder)
        return Answer(exit_code=ExitCode.OK, bill=bill, run_dir=folder, lock=lock, resume=True, as_json=as_json)
    folder = rundir.create(bill.plan)
    lock = rundir.claim(folder)
    rundir.write_plan(rundir.plan_document(bill, findings), folder)
    (folder / rundir.REPORT).write_text(render(bill, ReportChoice.full))
    return Answer(exit_code=ExitCode.OK, bill=bill, run_dir=folder, lock=lock, as_json=as_json)


def _recorded_in(bill: Bill, runs_dir: str) -> Bill:
    """The same bill, its run elsewhere."""
    asked = bill.asked_plan and replace(bill.asked_plan, runs_dir=runs_dir)
    return replace(bill, plan=replace(bill.plan, runs_dir=runs_dir), asked_plan=asked)
