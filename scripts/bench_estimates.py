"""How many memory estimates a second, and how long does a whole verdict take, the search over every rung included?

python scripts/bench_estimates.py [model=gpt2_124m hw=4x4090 ...]       estimates; half a minute
python scripts/bench_estimates.py --verdicts 300                        verdicts of random plans; a minute

The verdicts are those of random command lines (scripts/fuzz.py) and of the hardest ones known: every rung on, nothing
fits, up to 70B parameters on 1,024 ranks. Processor time, so that other programs do not count.
"""

from __future__ import annotations

import argparse
import random
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
from preflight.bill import make_bill
from preflight.errors import PreflightError
from preflight.memory.peak import estimate_memory
from preflight.plan import RunPlan
from scripts.fuzz import valid_line

N_ROUNDS = 5
N_ESTIMATES = 2000
WANTED_PER_SECOND = 10_000
WANTED_VERDICT_SECONDS = 0.25
EVERY_RUNG = ("lowering=all", "lowering.allow_model=true", "trainer.precision=fp32", "lowering.show=ladder")
HARD = (
    ("model=llama_70b", "hw=128x8xh100", *EVERY_RUNG, "budget.max_hours=1"),
    ("model=llama_70b", "hw=128x8xh100", *EVERY_RUNG, "budget.max_hours=null"),
    ("model=llama_13b", "hw=2x8xa100_40gb", *EVERY_RUNG, "budget.max_cost_usd=100"),
    ("model=gpt2_1558m", "hw=8x3060", *EVERY_RUNG, "budget.max_hours=null", "budget.max_memory_fraction=0.2"),
    ("model=gpt2_1558m", "hw=8x3060", *EVERY_RUNG, "budget.max_energy_kwh=1"),
)
COLD_SECONDS, WARM_SECONDS = 1.0, 0.25  # of a comparison


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 when slower than wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="as for launch.py")
    parser.add_argument("--verdicts", type=int, default=0, help="number of random plans to judge")
    asked = parser.parse_args(arguments)
    if asked.verdicts:
        return _verdicts(asked.verdicts)
    overrides = asked.overrides or ["model=gpt2_124m", "hw=4x4090"]
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


def _verdicts(n_plans: int) -> int:
    """0, or 1 when the slowest is slower than wanted."""
    chance = random.Random(1337)
    lines = [*HARD, *(valid_line(chance) for _ in range(n_plans))]
    timed = sorted(filter(None, map(_verdict_seconds, lines)), reverse=True)
    slowest, line = timed[0]
    median = timed[len(timed) // 2][0]
    print(f"{len(timed)} verdicts: median {1e3 * median:.1f} ms, slowest {1e3 * slowest:.0f} ms ({line})")
    return 0 if slowest <= WANTED_VERDICT_SECONDS else 1


def _verdict_seconds(line: Sequence[str]) -> tuple[float, str] | None:
    """Of plan to bill, warm; None: no plan, since it does not divide or the card cannot do it."""
    try:
        first = bill(*line, "calibration=off")
    except PreflightError:
        return None
    plan = first.asked_plan or first.plan
    start = time.process_time()
    make_bill(plan, ())
    return time.process_time() - start, " ".join(line)


def _seconds(plan: RunPlan) -> float:
    """Processor time, so that other programs do not count."""
    plans = [replace(plan, trainer=replace(plan.trainer, micro_batch_size=1 + i % 64)) for i in range(N_ESTIMATES)]
    start = time.process_time()
    for one in plans:
        estimate_memory(one)
    return time.process_time() - start


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
