"""From the command line to a decision: print the bill, and make the run's folder when the answer is go."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from conf.choices import Action, ReportChoice
from conf.compose import Request, compose, sound_part
from conf.schema import Config
from launcher.files import refuse_without_grid
from launcher.finish import record
from launcher.killed import record_killed
from launcher.new_budget import budget_options, freeze, plan_within, refuse_past_deadline
from launcher.output import complain, say
from preflight import rundir
from preflight.bill import Bill, for_launch, make_bill
from preflight.calibration.calibrate import calibrate
from preflight.calibration.probes import read_probes, with_probes
from preflight.checks.check import check
from preflight.errors import ConfigError, ExitCode, PreflightError, Problem
from preflight.machine.snapshot import Machine, probe
from preflight.plan import RunPlan
from preflight.planfile import read_json
from preflight.record import Ledger, read_ledger
from preflight.report.render import error_document, render
from preflight.resolve.resolve import resolve
from preflight.spent import remember
from preflight.verdict.judge import Finding

if TYPE_CHECKING:
    from preflight.compare import Comparison

FROZEN_KEYS = ("plan", "resume", "dry_run", "report", "runs_dir")  # a frozen plan takes no other override


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the command line comes to: an exit code, or a run to start in `run_dir`."""

    exit_code: int
    bill: Bill | None = None
    run_dir: Path | None = None  # None: nothing to start
    lock: int | None = None  # keeps other launchers out of run_dir while it is open
    resume: bool = False
    as_json: bool = False


def answer(argv: Sequence[str]) -> Answer:
    """Everything up to the first process; nothing that a user can cause leaves here as a traceback."""
    as_json = any(re.fullmatch(r"""\+*report=["']?json["']?""", word) for word in argv)
    try:
        return _answer(argv)
    except PreflightError as first:
        error = _with_further_problems(first, argv)
    except Exception as fault:
        if os.environ.get("PREFLIGHT_DEBUG"):
            raise
        error = _own_fault(fault)
    if as_json:
        problems = error.problems if isinstance(error, ConfigError) else [_as_problem(error)]
        say(json.dumps(error_document(error.exit_code, problems)))
    else:
        complain(str(error))
    return Answer(exit_code=error.exit_code, as_json=as_json)


def _own_fault(fault: Exception) -> ConfigError:
    """Nobody foresaw this; the user learns where it is and how to see more."""
    import traceback

    place = traceback.extract_tb(fault.__traceback__)[-1]
    message = f"a fault of preflight: {type(fault).__name__}: {fault} ({place.filename}:{place.lineno})"
    return ConfigError([Problem(path="", value="", message=message, fix="PREFLIGHT_DEBUG=1 shows the whole traceback")])


def _with_further_problems(error: PreflightError, argv: Sequence[str]) -> PreflightError:
    """Faulty overrides end the composing; what the sound ones would have met later is told in the same list."""
    if not isinstance(error, ConfigError):
        return error
    try:
        config = sound_part(argv)
        if config is not None and config.action is Action.compare:
            _compared(config, argv)
        elif config is not None:
            planned(config, probe(Path(config.runs_dir)), argv)
    except ConfigError as later:
        return ConfigError([*error.problems, *(p for p in later.problems if p not in error.problems)])
    except PreflightError:  # another kind of trouble waits until the configuration is right
        return error
    return error


def planned(config: Config, machine: Machine, argv: Sequence[str]) -> tuple[RunPlan, tuple[Finding, ...]]:
    """The plan as asked for, calibrated by earlier runs, and what the machine has to say about it."""
    plan = resolve(config, machine, command=_command(argv), created_at=datetime.now(UTC).isoformat(timespec="seconds"))
    if config.calibration != "off":
        ledger = _ledger(config)
        plan = with_probes(plan, read_probes(_place(config)))
        plan = replace(plan, calibration=calibrate(plan, ledger.records, ledger.sha256))
    return plan, check(plan, machine)


def _command(argv: Sequence[str]) -> str:
    return shlex.join(["python", "launch.py", *argv])


def _place(config: Config) -> Path:
    """Where earlier runs and measurements are read from."""
    return Path(config.runs_dir if config.calibration == "ledger" else config.calibration).expanduser()


def _ledger(config: Config) -> Ledger:
    """The newest runs; lines that are none are told."""
    ledger = read_ledger(_place(config), n_last=100)
    for warning in ledger.warnings:
        complain(warning)
    return ledger


def _compared(config: Config, argv: Sequence[str]) -> Comparison:
    from launcher.compare import compared  # only comparisons pay for it

    records = _ledger(config).records if config.calibration != "off" else ()
    probes = read_probes(_place(config)) if config.calibration != "off" else ()
    return compared(config, _command(argv), records, probes)


def _answer(argv: Sequence[str]) -> Answer:
    began_unix = time.time()
    request = compose(argv)
    for note in request.notes:
        complain(note)
    if request.text is not None:
        say(request.text)
        return Answer(exit_code=ExitCode.OK)
    if request.config is None:
        from launcher.grid import bills_and_runs  # single bills do not pay for it

        return Answer(exit_code=bills_and_runs(request))
    config = request.config
    _check_runs_dir(config)
    refuse_without_grid(config)
    machine = probe(Path(config.runs_dir))
    if config.resume is not None or config.plan is not None:
        return _frozen(config, machine, request)
    if config.action is Action.compare:
        from launcher.compare import show

        return Answer(exit_code=show(_compared(config, argv), config.report))
    if config.action is Action.calibrate:
        from launcher.calibrate import calibrate as measure

        return Answer(exit_code=measure(config, lambda: planned(config, machine, argv), began_unix))
    plan, findings = planned(config, machine, argv)
    if not config.dry_run:
        from launcher.trial import tried

        plan, findings = tried(plan, findings, machine)
    return _show_and_prepare(config, make_bill(plan, findings), findings)


def _given(config: Config, request: Request) -> tuple[set[str], list[str]]:
    """What was typed beside `plan=` or `resume=`, and which limits of a run that is resumed; ConfigError: too much."""
    given = {line.lstrip("+~").partition("=")[0] for line in request.overrides}
    limits = budget_options(given) if config.resume else []
    if extra := sorted(given.difference(FROZEN_KEYS, {f"budget.{limit}" for limit in limits})):
        message = f"a frozen plan takes only {', '.join(FROZEN_KEYS)}" + " and budget.*" * (config.resume is not None)
        raise ConfigError([Problem(path=key, value="...", message=message, fix=f"leave out {key}") for key in extra])
    for key, value in (("resume", config.resume), ("plan", config.plan)):
        if value is not None and not value.strip():
            fix = "resume=latest" if key == "resume" else "plan=RUN_DIR/plan.json"
            raise ConfigError([Problem(path=key, value=value, message="names nothing", fix=fix)])
    return given, limits


def _frozen(config: Config, machine: Machine, request: Request) -> Answer:
    """`plan=FILE` and `resume=RUN_DIR`: nothing is decided anew, so no other override has a meaning."""
    given, limits = _given(config, request)
    folder = None
    if config.resume is not None:
        folder = rundir.find(config.resume, Path(config.runs_dir).expanduser().resolve())
    bill, findings = rundir.replay(folder / rundir.PLAN if folder else Path(config.plan or ""))
    if not config.dry_run:
        findings = check(bill.plan, machine)
        bill = make_bill(bill.asked_plan or bill.plan, findings)
    if folder is not None and limits:
        bill = make_bill(plan_within(config, folder, limits), findings)
    if folder is None and "runs_dir" in given:
        bill = _recorded_in(bill, str(Path(config.runs_dir).expanduser().resolve()))
    if folder is not None and rundir.is_finished(folder):
        word = f"{folder} is finished; nothing to resume"
        as_json = config.report is ReportChoice.json
        say(json.dumps({**error_document(ExitCode.OK, ()), "message": word}) if as_json else word)
        return Answer(exit_code=ExitCode.OK)
    if not config.dry_run:
        refuse_past_deadline(bill.plan, f"resume={folder}" if folder else "plan=")
    if folder is not None:
        complain(f"resuming {folder}; the bill is that of the whole run")
    return _show_and_prepare(config, bill, findings, folder)


def _show_and_prepare(config: Config, bill: Bill, findings: tuple[Finding, ...], folder: Path | None = None) -> Answer:
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


def _check_runs_dir(config: Config) -> None:
    """Before anything is read from it or written to it."""
    place = Path(config.runs_dir).expanduser()
    if place.exists() and not place.is_dir():
        message = "is no folder"
        raise ConfigError([Problem(path="runs_dir", value=config.runs_dir, message=message, fix="runs_dir=runs")])


def _recorded_in(bill: Bill, runs_dir: str) -> Bill:
    """The same bill, its run elsewhere."""
    asked = bill.asked_plan and replace(bill.asked_plan, runs_dir=runs_dir)
    return replace(bill, plan=replace(bill.plan, runs_dir=runs_dir), asked_plan=asked)


def _as_problem(error: PreflightError) -> Problem:
    return Problem(path="", value="", message=str(error), fix="")
