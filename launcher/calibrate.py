"""`action=calibrate`: measure this machine, then a few real steps of the asked plan, so that later bills are surer.

Bounded by calibrate.max_seconds and calibrate.max_steps; what that costs is said first. The measurements go to
probes.jsonl, the steps to the ledger, both in runs_dir; every later bill there reads them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.choices import ReportChoice
from conf.schema import CalibrateConfig, Config
from launcher.finish import record
from launcher.output import complain, say
from launcher.short_run import MIN_STEPS, n_steps_within, seconds_of_the_fewest, shortened, with_n_steps
from preflight import rundir
from preflight.actual import Actual
from preflight.bill import Bill, for_launch, make_bill
from preflight.calibration.probes import probe_record, probes_path
from preflight.errors import ConfigError, ExitCode, Problem
from preflight.estimate import Estimate
from preflight.hw_plan import CardKind
from preflight.plan import Precision, RunPlan
from preflight.products import product_precision
from preflight.record import append_line
from preflight.report.calibration import (
    after_lines,
    before_lines,
    calibration_document,
    longer_seconds,
    probe_lines,
)
from preflight.resolve.ranges import RANGES
from preflight.units import SECONDS_PER_HOUR
from preflight.verdict.judge import Finding
from trainers.backends import local
from trainers.signals import PARENT_VARIABLE

PROBE_SHARE = 0.35  # of the time; the rest is for the steps
IMPORT_SECONDS = 15.0  # that the probe's process may take to start beyond its share
STOP_SHARE = 0.85  # of the time, then the trainer is asked to stop: it saves a checkpoint first
GRACE_SHARE = 0.1
ROUND_SECONDS = 5  # a limit is proposed in steps of so many
Planned = tuple[RunPlan, tuple[Finding, ...]]


@dataclass(slots=True, kw_only=True)
class Calibration:
    """What has been done so far."""

    before: Bill
    deadline: float  # of time.monotonic()
    found: dict[str, Any] | None = None  # the probe's answer
    short: RunPlan | None = None  # of the real steps
    actual: Actual | None = None
    why_no_steps: str = ""
    exit_code: int = ExitCode.OK


def calibrate(config: Config, planned: Callable[[], Planned], began_unix: float) -> int:
    """`planned` works out the asked plan from everything that is recorded by then."""
    plan, findings = planned()
    _refuse_under_torchrun(config)
    limits, as_json = config.calibrate, config.report is ReportChoice.json
    bill = for_launch(make_bill(plan, findings))
    at_most_usd = _at_most_usd(bill.estimate, limits.max_seconds)
    tell = complain if as_json else say
    for line in before_lines(bill, limits.max_seconds, limits.max_steps, at_most_usd):
        tell(line)
    forbidden = _why_not(bill, at_most_usd)
    if forbidden is not None or config.dry_run:
        code, why = forbidden or (ExitCode.OK, "")
        if as_json:
            say(json.dumps(calibration_document(bill, None, None, None, why, limits, at_most_usd, code)))
        elif why:
            say(why)
        return code
    work = Calibration(before=bill, deadline=time.monotonic() + limits.max_seconds)
    _probe(work, limits.max_seconds)
    if work.found is not None and not as_json:
        say("\n".join(probe_lines(plan.hw, work.found, limits.max_seconds)))
    _take_steps(work, config, planned, began_unix)
    after = make_bill(*planned())
    if as_json:
        document = calibration_document(
            bill, work.found, work.actual, after, work.why_no_steps, limits, at_most_usd, work.exit_code
        )
        say(json.dumps(document))
    else:
        say("\n".join(after_lines(bill, after, work.actual, work.why_no_steps)))
    return work.exit_code


def _refuse_under_torchrun(config: Config) -> None:
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        message = "starts its own processes; torchrun has started some already"
        fix = f"python launch.py action=calibrate hw={config.hw.card}, without torchrun"
        raise ConfigError([Problem(path="action", value="calibrate", message=message, fix=fix)])


def _at_most_usd(estimate: Estimate, max_seconds: float) -> float | None:
    """None: the price is unknown."""
    usd_per_hour = estimate.cost.rates.usd_per_hour
    return None if usd_per_hour is None else usd_per_hour * max_seconds / SECONDS_PER_HOUR


def _why_not(bill: Bill, at_most_usd: float | None) -> tuple[ExitCode, str] | None:
    """Before anything is measured: another machine, no place to write to, or money that nobody granted."""
    plan = bill.plan
    for finding in bill.verdict.findings:
        if finding.exit_code == ExitCode.WRONG_MACHINE:
            return ExitCode.WRONG_MACHINE, f"only this machine, as it is, can be measured here: {finding.message}"
        if finding.check == "place.runs_dir":
            return ExitCode.CONFIG, f"measurements could not be kept: {finding.message}. Fix: {finding.fix}"
    limit = plan.budget.max_cost_usd
    if limit is not None and (at_most_usd is None or at_most_usd > limit):
        cost = "an unknown price" if at_most_usd is None else f"${at_most_usd:.2g}"
        return ExitCode.OVER_BUDGET, f"budget.max_cost_usd={limit:g} does not allow {cost} for a calibration"
    return None


def _probe(work: Calibration, max_seconds: float) -> None:
    """In a process of its own, since it needs torch; nothing measured leaves only the steps."""
    plan = work.before.plan
    share_seconds = PROBE_SHARE * max_seconds
    timeout_seconds = min(share_seconds + IMPORT_SECONDS, work.deadline - time.monotonic())
    try:
        found = ask_probe(_probe_arguments(plan, share_seconds), timeout_seconds)
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        complain(f"the machine was not measured: {_why_not_measured(error, max_seconds)}")
        work.exit_code = ExitCode.TRAINING_FAILED
        return
    for note in found["notes"]:
        complain(note)
    work.found = found
    append_line(probes_path(Path(plan.runs_dir)), probe_record(plan, found))


def _why_not_measured(error: Exception, max_seconds: float) -> str:
    """A timeout's own words are the whole command."""
    if isinstance(error, subprocess.TimeoutExpired):
        longer = f"calibrate.max_seconds={longer_seconds(max_seconds):g} may do"
        return f"not within calibrate.max_seconds={max_seconds:g}; a busy machine needs more to start alone: {longer}"
    return str(error)


def ask_probe(arguments: Sequence[str], timeout_seconds: float) -> dict[str, Any]:
    """The last line that it prints. SubprocessError, ValueError, IndexError: it failed, or took too long."""
    done = subprocess.run(
        [sys.executable, "-m", "trainers.probe", *arguments],
        cwd=Path(__file__).resolve().parents[1],
        env=os.environ | {PARENT_VARIABLE: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=timeout_seconds,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _probe_arguments(plan: RunPlan, share_seconds: float) -> list[str]:
    """The asked precision first; what else the card can do beside it."""
    hw = plan.hw
    is_card = hw.card.kind in (CardKind.cuda, CardKind.rocm)
    half = [Precision.bf16] if hw.card.has_bf16 else [Precision.fp16] if is_card else []
    asked = Precision.bf16 if plan.trainer.precision is Precision.bf16_pure else plan.trainer.precision
    products = [] if asked is not Precision.fp32 else [product_precision(plan)]
    precisions = dict.fromkeys([asked, *products, *half, Precision.fp32])
    return [
        "--kind", hw.card.kind.value, "--ranks", str(hw.n_gpus_per_node),
        "--threads", str(hw.n_cpu_cores or os.cpu_count() or 1),
        "--precisions", *(precision.value for precision in precisions),
        "--disk", plan.runs_dir, "--seconds", f"{share_seconds:.1f}",
    ]  # fmt: skip


def _take_steps(work: Calibration, config: Config, planned: Callable[[], Planned], began_unix: float) -> None:
    """As many real steps as fit the time that is left, recorded as a run of the asked plan."""
    limits = config.calibrate
    plan, findings = planned()  # on the machine as measured now
    bill = for_launch(make_bill(plan, findings))
    work.why_no_steps = _why_no_steps(bill)
    left_seconds = work.deadline - time.monotonic() - (1 - STOP_SHARE) * limits.max_seconds
    if not work.why_no_steps:
        n_steps = n_steps_within(bill.plan, left_seconds, limits.max_steps)
        if n_steps == 0:
            work.why_no_steps = _too_few(bill.plan, limits, limits.max_seconds - (work.deadline - time.monotonic()))
    if work.why_no_steps:
        return
    work.short = shortened(bill.plan, n_steps, GRACE_SHARE * limits.max_seconds)
    decided_seconds = max(0.0, time.time() - began_unix - (limits.max_seconds - (work.deadline - time.monotonic())))
    _run(work, findings, decided_seconds, left_seconds)


def _too_few(plan: RunPlan, limits: CalibrateConfig, gone_seconds: float) -> str:
    """And the limit within which two steps should fit: the probe's start and share, then theirs."""
    start_seconds = max(0.0, gone_seconds - PROBE_SHARE * limits.max_seconds)
    needed = (seconds_of_the_fewest(plan, limits.max_steps) + start_seconds) / (STOP_SHARE - PROBE_SHARE)
    enough = ROUND_SECONDS * (int(needed / ROUND_SECONDS) + 1)
    more = f"calibrate.max_seconds={enough:g} should do" if enough <= RANGES["calibrate.max_seconds"].high else ""
    fewer = "fewer trainer.tokens_per_step="
    return f"not even two steps fit calibrate.max_seconds={limits.max_seconds:g}; " + (
        f"{more}, or {fewer}" if more else fewer
    )


def _why_no_steps(bill: Bill) -> str:
    broken = [violation.message for violation in bill.verdict.violations if violation.budget == "memory"]
    errors = [finding.message for finding in bill.verdict.findings if finding.exit_code == ExitCode.CONFIG]
    return next(iter([*broken, *errors]), "")


def _run(work: Calibration, findings: Sequence[Finding], decided_seconds: float, left_seconds: float) -> None:
    """The trainer itself, stopped in time; its checkpoint is of no use to anybody."""
    assert work.short is not None
    bill = for_launch(make_bill(work.short, tuple(findings)))
    run_dir = rundir.create(bill.plan)
    lock = rundir.claim(run_dir)
    rundir.write_plan(rundir.plan_document(bill, tuple(findings)), run_dir)
    started_unix = time.time() - decided_seconds  # as if launch.py had gone straight to the run
    with _stop_after(left_seconds) as is_over:
        outcome = local.run(bill.plan, run_dir, started_unix=started_unix, resume=False, progress=sys.stderr)
    actual = rundir.read_actual(run_dir)
    if actual is None:
        actual = rundir.unmeasured(bill.plan, run_dir, outcome.exit_code, outcome.reason, outcome.failed_rank)
    if is_over and actual.n_steps_done >= MIN_STEPS:  # a whole run of the steps that were done
        bill = for_launch(make_bill(with_n_steps(bill.plan, actual.n_steps_done), tuple(findings)))
    record(bill, actual, run_dir, actual.exit_code, actual.exit_reason)
    _remove_checkpoints(run_dir)
    if lock is not None:
        os.close(lock)
    work.actual = actual
    if is_over and actual.n_steps_done < MIN_STEPS:
        work.why_no_steps = f"the time was over after {actual.n_steps_done} of {bill.plan.trainer.n_steps} steps"
    elif not is_over and outcome.exit_code != ExitCode.OK:
        work.exit_code, work.why_no_steps = outcome.exit_code, outcome.reason


@contextmanager
def _stop_after(seconds: float) -> Iterator[list[bool]]:
    """SIGUSR1 asks the ranks to finish their step and save; `trainers.backends.local` passes it on.

    The list has something in it when the time was over.
    """
    is_over: list[bool] = []
    if not hasattr(signal, "SIGUSR1"):  # Windows: the number of steps is the bound
        yield is_over
        return

    def ask() -> None:
        is_over.append(True)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    timer = threading.Timer(max(1.0, seconds), ask)
    timer.daemon = True
    timer.start()
    try:
        yield is_over
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def _remove_checkpoints(run_dir: Path) -> None:
    import shutil

    shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)
