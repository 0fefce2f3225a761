"""From the command line to a decision: print the bill, and make the run's folder when the answer is go."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from conf.choices import Action, ReportChoice
from conf.compose import compose, sound_part
from conf.schema import Config
from launcher.answer import Answer
from launcher.files import refuse_without_grid
from launcher.output import complain, say
from preflight.bill import make_bill
from preflight.checks.check import check
from preflight.errors import ConfigError, ExitCode, PreflightError, Problem, WrongMachine
from preflight.machine.snapshot import Machine, is_open, probe
from preflight.plan import RunPlan
from preflight.planfile import LEDGER_NAME, PROBES_NAME
from preflight.report.render import render
from preflight.resolve.resolve import resolve
from preflight.verdict.judge import Finding

if TYPE_CHECKING:
    from preflight.compare import Comparison

SYSTEMS_ERRORS = frozenset(
    number
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "EIO", "EMFILE", "ENFILE", "ESTALE")
    if (number := getattr(errno, name, None)) is not None  # Windows lacks some
)


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
        is_systems = isinstance(fault, OSError) and fault.errno in SYSTEMS_ERRORS
        error = _systems_fault(fault) if is_systems else _own_fault(fault)
    if as_json:
        from preflight.report.document import error_document

        problems = error.problems if isinstance(error, ConfigError) else [_as_problem(error)]
        say(json.dumps(error_document(error.exit_code, problems)))
    else:
        complain(str(error))
    return Answer(exit_code=error.exit_code, as_json=as_json)


def _systems_fault(fault: Exception) -> WrongMachine:
    """The disk is full or read-only, a folder is closed to us: where it was noticed matters to nobody."""
    return WrongMachine(f"the system refuses: {fault}\n  To fix: free space, or runs_dir=A_FOLDER_YOU_CAN_WRITE_TO")


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
    except Exception:  # noqa: BLE001 - trouble of another kind waits until the configuration is right
        return error
    return error


def planned(config: Config, machine: Machine, argv: Sequence[str]) -> tuple[RunPlan, tuple[Finding, ...]]:
    """The plan as asked for, calibrated by earlier runs, and what the machine has to say about it."""
    plan = resolve(config, machine, command=_command(argv), created_at=datetime.now(UTC).isoformat(timespec="seconds"))
    if config.calibration != "off" and _has_history(place := _place(config)):
        from launcher.history import calibrated  # a first bill does not pay for it

        plan = calibrated(plan, place)
    return plan, found(plan, machine, is_dry=config.dry_run)


def found(plan: RunPlan, machine: Machine, *, is_dry: bool) -> tuple[Finding, ...]:
    """What the machine has to say, and the folders that will be written to."""
    findings = check(plan, machine)
    if is_dry and all(map(is_open, (plan.runs_dir, plan.data.dir))):
        return findings
    from launcher.places import closed_places  # the bill of what is in order does not pay for it

    closed = closed_places(plan, machine, is_dry=is_dry)
    has_no_place = any(finding.check == "place.runs_dir" for finding in closed)  # then its room means nothing
    return (*(one for one in findings if not (has_no_place and one.check == "host.disk")), *closed)


def _has_history(place: Path) -> bool:
    """Whether there is anything to read; what cannot be looked at is complained of where it is read."""
    try:
        return place.suffix == ".jsonl" or any((place / name).exists() for name in (LEDGER_NAME, PROBES_NAME))
    except OSError:
        return True


def _command(argv: Sequence[str]) -> str:
    return shlex.join(["python", "launch.py", *argv])


def _place(config: Config) -> Path:
    """Where earlier runs and measurements are read from."""
    return Path(config.runs_dir if config.calibration == "ledger" else config.calibration).expanduser()


def _compared(config: Config, argv: Sequence[str]) -> Comparison:
    from launcher.compare import compared  # only comparisons pay for it
    from launcher.history import earlier

    return compared(config, _command(argv), *earlier(config, _place(config)))


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
        from launcher.begin import go_on

        return go_on(config, machine, request)
    if config.action is Action.compare:
        from launcher.compare import show

        return Answer(exit_code=show(_compared(config, argv), config.report))
    if config.action is Action.calibrate:
        from launcher.calibrate import calibrate as measure

        return Answer(exit_code=measure(config, lambda: planned(config, machine, argv), began_unix))
    plan, findings = planned(config, machine, argv)
    if config.dry_run:
        bill = make_bill(plan, findings)
        say(render(bill, config.report).removesuffix("\n"))
        return Answer(exit_code=bill.exit_code, bill=bill, as_json=config.report is ReportChoice.json)
    from launcher.begin import begin
    from launcher.trial import tried

    plan, findings = tried(plan, findings, machine)
    return begin(config, make_bill(plan, findings), findings)


def _check_runs_dir(config: Config) -> None:
    """Before anything is read from it or written to it."""
    place = Path(config.runs_dir).expanduser()
    if place.exists() and not place.is_dir():
        message = "is no folder"
        raise ConfigError([Problem(path="runs_dir", value=config.runs_dir, message=message, fix="runs_dir=runs")])


def _as_problem(error: PreflightError) -> Problem:
    return Problem(path="", value="", message=str(error), fix="")
