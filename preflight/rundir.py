"""The folder of a run: made once, found again for `resume=`, and its plan.json, from which a bill is replayed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

from preflight import presence
from preflight.actual import NUMBERS, Actual
from preflight.bill import Bill, make_bill
from preflight.errors import ConfigError, ExitCode, Problem
from preflight.flat import flat_estimate
from preflight.plan import RunPlan
from preflight.planfile import CHECKPOINT_FILES, PLAN_NAME, newest_run, read_json, write_json
from preflight.verdict.judge import Finding

PLAN = PLAN_NAME
ACTUAL = "actual.json"
REPORT = "report.txt"
UNMEASURED = tuple(
    name
    for name in NUMBERS
    if name not in ("n_steps_done", "first_step", "n_skipped_steps", "is_out_of_memory", "energy_is_measured")
)
TRAIN_FIRST = "train first: python launch.py"
CHECKPOINTS = CHECKPOINT_FILES
LOCK = "lock"  # held while a launcher works in the folder; empty once its run is recorded
RANK_SECONDS = 6.0  # ranks whose launcher was killed end within five
POSITIVE_COUNTS = (
    "micro_batch_size", "grad_accum_steps", "tokens_per_step", "sequence_length", "n_steps",
    "n_eval_sequences", "checkpoint_interval", "keep_checkpoints", "log_interval",
)  # fmt: skip


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
            "usable_bytes": bill.estimate.memory.usable_bytes,
        },
    }


def write_plan(document: Mapping[str, Any], run_dir: Path) -> None:
    """Exclusively: two runs never share a folder."""
    write_json(document, run_dir / PLAN, exclusive=True)


def replay(path: Path) -> tuple[Bill, tuple[Finding, ...]]:
    """The bill that was printed when this plan was frozen, worked out again from the file alone."""
    findings = read_json(tuple[Finding, ...], path, "findings")
    plan = read_json(RunPlan, path, "asked_plan")
    faults = faults_of(plan)
    try:
        if not faults:
            return make_bill(plan, findings), findings
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # numbers that only a hand can have written
        faults.append(str(error))
    message = f"not a plan that can be worked out: {'; '.join(faults)}"
    raise ConfigError([Problem(path="plan", value=str(path), message=message, fix="plan=RUN_DIR/plan.json")])


def faults_of(plan: RunPlan) -> list[str]:
    """What a file edited by hand may break; the launcher's own plans never have any."""
    model, trainer, hw = plan.model, plan.trainer, plan.hw
    counts = {
        **{name: getattr(model, name) for name in ("n_layer", "n_head", "n_kv_head", "n_embd", "d_ff", "vocab_size")},
        **{name: getattr(trainer, name) for name in POSITIVE_COUNTS},
        "n_nodes": hw.n_nodes,
        "n_gpus_per_node": hw.n_gpus_per_node,
    }
    faults = [f"{name}={count} must be at least 1" for name, count in counts.items() if count < 1]
    if trainer.eval_interval < 0 or not isfinite(trainer.learning_rate) or trainer.learning_rate <= 0:
        faults.append(f"eval_interval={trainer.eval_interval}, learning_rate={trainer.learning_rate}")
    if faults:
        return faults
    if model.n_embd % model.n_head or model.n_head % model.n_kv_head:
        faults.append(f"n_head={model.n_head} does not divide n_embd={model.n_embd}, or n_kv_head n_head")
    passes = trainer.micro_batch_size * trainer.grad_accum_steps * trainer.sequence_length * hw.world_size
    if passes != trainer.tokens_per_step:
        faults.append(f"tokens_per_step={trainer.tokens_per_step}, its passes make {passes}")
    return faults


def claim(run_dir: Path) -> int | None:
    """Hold the folder for this process and its life (a file descriptor); ConfigError when another launcher has it."""
    try:
        import fcntl
    except ImportError:  # not POSIX
        return None
    descriptor = os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode() or "?"
        os.close(descriptor)
        message = f"process {holder} is training there"
        raise ConfigError(
            [Problem(path="resume", value=str(run_dir), message=message, fix="wait, or stop it")]
        ) from None
    except OSError:  # a network file system without locks
        return descriptor
    if left := presence.wait_until_all_are_gone(run_dir, RANK_SECONDS):  # of a launcher that was killed
        os.close(descriptor)
        message = f"ranks of an earlier launch are still there: process {', '.join(map(str, left.values()))}"
        raise ConfigError([Problem(path="resume", value=str(run_dir), message=message, fix="wait, or stop them")])
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def release(run_dir: Path) -> None:
    """The run is recorded: who finds the lock free from now on has nothing to tell."""
    with suppress(OSError):
        (run_dir / LOCK).write_bytes(b"")


def abandoned(runs_dir: Path) -> list[Path]:
    """Folders whose launcher was killed before it could record the run: its lock names it, and nobody holds it."""
    return [lock.parent for lock in sorted(runs_dir.glob(f"*/{LOCK}")) if lock.stat().st_size and _is_free(lock)]


def _is_free(lock: Path) -> bool:
    """Nobody holds it, and no rank is left that does what it was told."""
    try:
        import fcntl

        with lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return not presence.alive(lock.parent)


def find(which: str, runs_dir: Path) -> Path:
    """The run folder that `resume=` names; `latest` is the newest one with a checkpoint."""
    folder = newest_run(runs_dir) if which == "latest" else Path(which).expanduser().resolve()
    if folder is not None and (folder / PLAN).is_file():
        return folder
    message = f"no run with a checkpoint in {runs_dir}" if which == "latest" else f"{folder} has no {PLAN}"
    folders = sorted((path.parent for path in runs_dir.glob(f"*/{PLAN}")), reverse=True)
    known = next((folder for folder in folders if not is_finished(folder)), None)
    fix = f"resume={known}" if known else f"{started_from(folders[0])}, a new run" if folders else TRAIN_FIRST
    raise ConfigError([Problem(path="resume", value=which, message=message, fix=fix)])


def started_from(folder: Path) -> str:
    """What begins a new run with the weights of one that is finished; without a checkpoint with those of none."""
    return f"trainer.init_from={folder}" if newest_checkpoint(folder) is not None else TRAIN_FIRST


def newest_checkpoint(run_dir: Path) -> int | None:
    """Its step, by its name; whether it is sound is seen when it is read."""
    steps = [path.stem.removeprefix("step_") for path in run_dir.glob(CHECKPOINTS)]
    return max((int(step) for step in steps if step.isdecimal()), default=None)


def read_actual(run_dir: Path) -> Actual | None:
    """What the trainer measured; None when it ended before it could write."""
    path = run_dir / ACTUAL
    try:
        return read_json(Actual, path, "actual") if path.is_file() else None
    except ConfigError:  # a full disk cut it short: nothing was measured that can be read
        return None


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
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):  # torn
            continue
    return 0
