"""Do budgets hold, and is nothing lost? Runs with budgets of 10 to 90 % of what they need, each then resumed without.

    python scripts/bench_guard.py                  20 runs of ~4 s and their rests (~3 min)
    python scripts/bench_guard.py --runs 3         the same, shorter

The need is the shorter of two undisturbed runs, measured first. Budgets take turns: hours, money, energy, a deadline;
every other run has its forecast blindfolded, so that it meets the limit itself. What a run may use beyond its budget is
one step and one save, its own longest ones. Every loss of the resumed run must be the undisturbed run's, to the bit.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launch import bill
from preflight.actual import Actual
from preflight.errors import ExitCode
from preflight.plan import RunPlan
from preflight.spent import Spent, read_segments, total
from trainers import guard
from trainers.job import Job
from trainers.meters import Meters
from trainers.pretrain import pretrain

USD_PER_HOUR, WATTS = 3600.0, 3.6e6  # a dollar and a kWh a second
KINDS = ("max_hours", "max_cost_usd", "max_energy_kwh", "deadline")
LEAST, MOST = 0.1, 0.9  # of the need
OVERRIDES = (
    "hw=cpu", "model.n_layer=2", "model.n_embd=64", "model.n_head=2", "trainer.sequence_length=64",
    "trainer.micro_batch_size=4", "trainer.tokens_per_step=256", "trainer.precision=fp32", "tracking=none",
    "trainer.eval_interval=50", "trainer.log_interval=1", "calibration=off",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """One run with a budget."""

    kind: str
    limit_seconds: float
    used_seconds: float
    allowance_seconds: float  # one step and one save
    n_steps_done: int
    exit_code: int
    why: str
    is_same: bool  # after it was resumed

    @property
    def is_kept(self) -> bool:
        """The budget, and every loss."""
        return self.is_same and self.used_seconds <= self.limit_seconds + self.allowance_seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 when a budget or a loss was not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("overrides", nargs="*", help="as for launch.py")
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    plan = bill(*OVERRIDES, f"trainer.n_steps={options.steps}", *options.overrides).plan
    plan = replace(plan, budget=replace(plan.budget, max_hours=None))
    with tempfile.TemporaryDirectory(prefix="bench-guard-") as folder:
        whole, again = Path(folder) / "whole", Path(folder) / "again"
        train(plan, whole)
        train(plan, again)
        need = min(spent(whole).wall_seconds, spent(again).wall_seconds)
        print(f"need {need:.2f} s for {options.steps} steps")
        print("budget           limit    used  allowed beyond  steps  code  same losses  why")
        runs = [measure(plan, Path(folder) / f"run-{i}", i, options.runs, need, losses(whole))
                for i in range(options.runs)]  # fmt: skip
    n_kept = sum(run.is_kept for run in runs)
    print(f"{n_kept} of {len(runs)} kept their budgets (+ one step + one save) and went on to the same losses; "
          f"{sum(run.exit_code == 6 for run in runs)} stopped")  # fmt: skip
    return 0 if n_kept == len(runs) else 1


def measure(plan: RunPlan, run_dir: Path, i: int, n: int, need: float, whole: dict[int, float]) -> Stopped:
    """Stop it, let it go on, compare."""
    part = LEAST + (MOST - LEAST) * i / max(1, n - 1)
    kind, limit = KINDS[i // 2 % len(KINDS)], part * need
    now = time.time()
    with blindfolded(i % 2 == 1):
        actual, allowance = train(within(plan, kind, limit, now), run_dir, started_unix=now)
    used = spent(run_dir).wall_seconds
    if actual.exit_code == ExitCode.STOPPED_AT_BUDGET:
        train(plan, run_dir, resume=True)
    stopped = Stopped(
        kind=kind,
        limit_seconds=limit,
        used_seconds=used,
        allowance_seconds=allowance,
        n_steps_done=actual.n_steps_done,
        exit_code=actual.exit_code,
        why=actual.exit_reason,
        is_same=losses(run_dir) == whole,
    )
    print(f"{kind:<14} {limit:6.2f} s {used:6.2f} s {1e3 * allowance:12.0f} ms  {stopped.n_steps_done:>5}  "
          f"{stopped.exit_code:>4}  {stopped.is_same!s:<11}  {stopped.why}")  # fmt: skip
    return stopped


def within(plan: RunPlan, kind: str, limit_seconds: float, now_unix: float) -> RunPlan:
    """The plan with one budget of so many seconds' worth."""
    value = {
        "max_hours": limit_seconds / 3600,
        "max_cost_usd": limit_seconds * USD_PER_HOUR / 3600,
        "max_energy_kwh": limit_seconds * WATTS / 3.6e6,
    }
    if kind in value:
        return replace(plan, budget=replace(plan.budget, **{kind: value[kind]}))  # type: ignore[arg-type]
    moment = now_unix + limit_seconds
    return replace(plan, budget=replace(plan.budget, deadline="then", deadline_unix_seconds=moment))


@contextmanager
def blindfolded(is_so: bool) -> Iterator[None]:
    """The guard says and does nothing about forecasts."""
    before = guard.MIN_STEPS
    guard.MIN_STEPS = 10**9 if is_so else before
    try:
        yield
    finally:
        guard.MIN_STEPS = before


def train(
    plan: RunPlan, run_dir: Path, *, resume: bool = False, started_unix: float | None = None
) -> tuple[Actual, float]:
    """In this process; also the longest step and save together."""
    run_dir.mkdir(exist_ok=True)
    job = Job(
        plan=plan, run_dir=run_dir, started_unix=started_unix or time.time(), resume=resume, flops_per_step=1.0,
        peak_flops_per_second=None, usd_per_hour=USD_PER_HOUR, watts=WATTS, estimate={}, progress=io.StringIO(),
    )  # fmt: skip
    meters = Meters(job.started_unix)
    actual = pretrain(job, meters)
    return actual, max(meters.steps.seconds) + max(meters.checkpoint_seconds, default=0.0)


def spent(run_dir: Path) -> Spent:
    """By the run's own book."""
    return total(read_segments(run_dir) or ())


def losses(run_dir: Path) -> dict[int, float]:
    """Of every step."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
