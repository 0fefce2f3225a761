"""How many memory estimates a second, and how long does a comparison of the whole catalog take?

python scripts/bench_estimates.py [model=gpt2_124m hw=4x4090 ...]

Lowering asks for an estimate at each micro-batch it considers; `action=compare` makes a plan for every card and count
and a bill for every offer: below 1 s with the start of Python, below 250 ms in a process that is warm. Processor time,
so that other programs do not count; the best of several rounds.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from conf.compose import compose
from launch import bill
from launcher.compare import compared
from preflight.memory.peak import estimate_memory
from preflight.plan import RunPlan

N_ROUNDS = 5
N_ESTIMATES = 2000
WANTED_PER_SECOND = 10_000
COLD_SECONDS, WARM_SECONDS = 1.0, 0.25  # of a comparison


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 when slower than wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="as for launch.py")
    overrides = parser.parse_args(arguments).overrides or ["model=gpt2_124m", "hw=4x4090"]
    seconds = min(_seconds(bill(*overrides).plan) for _ in range(N_ROUNDS))
    per_second = N_ESTIMATES / seconds
    print(f"{per_second:,.0f} memory estimates a second of processor time, {1e6 * seconds / N_ESTIMATES:.0f} us each")
    cold, warm, n_rows = _comparison()
    print(f"comparison of {n_rows} offers and counts: {cold:.2f} s cold, {1e3 * warm:.0f} ms warm")
    is_quick = cold < COLD_SECONDS and warm < WARM_SECONDS
    return 0 if per_second >= WANTED_PER_SECOND and is_quick else 1


def _comparison() -> tuple[float, float, int]:
    """Seconds of a fresh process and of one that has compared before, and how many rows there are."""
    overrides = ["model=gpt2_124m", "action=compare", "calibration=off"]
    command = [sys.executable, str(ROOT / "launch.py"), *overrides]
    cold = []
    for _ in range(N_ROUNDS):
        before = _children_seconds()
        subprocess.run(command, check=True, capture_output=True)
        cold.append(_children_seconds() - before)
    config = compose(overrides).config
    assert config is not None
    warm, n_rows = [], 0
    for _ in range(N_ROUNDS + 1):
        start = time.process_time()
        n_rows = len(compared(config, "", (), ()).rows)
        warm.append(time.process_time() - start)
    return min(cold), min(warm[1:]), n_rows


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _seconds(plan: RunPlan) -> float:
    """Processor time, so that other programs do not count."""
    plans = [replace(plan, trainer=replace(plan.trainer, micro_batch_size=1 + i % 64)) for i in range(N_ESTIMATES)]
    start = time.process_time()
    for one in plans:
        estimate_memory(one)
    return time.process_time() - start


if __name__ == "__main__":
    sys.exit(main())
