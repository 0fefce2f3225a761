"""How many memory estimates a second? Lowering asks for one at each micro-batch it considers.

python scripts/bench_estimates.py [model=gpt2_124m hw=4x4090 ...]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from launch import bill
from preflight.memory.peak import estimate_memory
from preflight.plan import RunPlan

N_ROUNDS = 5
N_ESTIMATES = 2000
WANTED_PER_SECOND = 10_000


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 when slower than wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="as for launch.py")
    overrides = parser.parse_args(arguments).overrides or ["model=gpt2_124m", "hw=4x4090"]
    seconds = min(_seconds(bill(*overrides).plan) for _ in range(N_ROUNDS))
    per_second = N_ESTIMATES / seconds
    print(f"{per_second:,.0f} memory estimates a second of processor time, {1e6 * seconds / N_ESTIMATES:.0f} us each")
    return 0 if per_second >= WANTED_PER_SECOND else 1


def _seconds(plan: RunPlan) -> float:
    """Processor time, so that other programs do not count."""
    plans = [replace(plan, trainer=replace(plan.trainer, micro_batch_size=1 + i % 64)) for i in range(N_ESTIMATES)]
    start = time.process_time()
    for one in plans:
        estimate_memory(one)
    return time.process_time() - start


if __name__ == "__main__":
    sys.exit(main())
