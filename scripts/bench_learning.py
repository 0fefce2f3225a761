"""Does every run make the next bill better, and is the band honest? Calibration on machines whose truth is known.

    python scripts/bench_learning.py                          simulated machines (a minute)
    python scripts/bench_learning.py --ledger runs            replay a ledger: each bill as it would be made today
    python scripts/bench_learning.py --real                   ten real runs of ten plans on this machine (ten minutes)

Exit code 1 when a promise is broken.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs from any folder

from launch import bill
from preflight.hw_plan import CardKind
from preflight.plan import RunPlan
from preflight.record import read_ledger
from scripts import learning_real, learning_replay, learning_simulated

MIN_HISTORIES = 300  # promises are about means and shares: of fewer, chance decides
MORE = ((3, 96), (2, 192), (6, 128), (10, 128))  # layers and widths


def main(argv: Sequence[str] | None = None) -> int:
    """0 when all promises are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="train for real, a bill before each run")
    parser.add_argument("--n-runs", type=int, default=10, help="of --real")
    parser.add_argument("--keep", type=Path, help="of --real: folder for runs and ledger, kept afterwards")
    parser.add_argument("--n-histories", type=int, default=1000, help="simulated ones")
    parser.add_argument("--ledger", type=Path, help="folder of runs, or a ledger file")
    parser.add_argument("overrides", nargs="*", help="of --real: for launch.py")
    options = parser.parse_args(argv)
    if options.n_histories < 1:
        parser.error(f"--n-histories {options.n_histories}: at least 1, and {MIN_HISTORIES} to be judged")
    if options.real:
        runs = learning_real.real_runs(options.n_runs, options.overrides, options.keep)
        print("\n".join(learning_real.term_lines(runs)))
        return told(learning_real.verdict(runs))
    if options.ledger:
        ledger = read_ledger(options.ledger)
        print("\n".join([*ledger.told(), *learning_replay.lines(ledger.records)]))
        return 0
    return simulated(options.n_histories)


def simulated(n_histories: int) -> int:
    """Processors and cards, steady, slow, noisy and drifting ones."""
    plans = [*_plans_of_processors(), *_plans_of_cards()]
    bills = learning_simulated.simulate(plans, n_histories)
    print("\n".join(learning_simulated.table(bills)))
    if n_histories < MIN_HISTORIES:
        print(f"not judged: {n_histories} histories are too few, --n-histories {MIN_HISTORIES} and more tell")
        return 0
    on_cpu = [plan for plan in plans if plan.hw.card.kind is CardKind.cpu]
    return told([*learning_simulated.promises(bills), *learning_simulated.outliers(on_cpu, n_histories // 10)])


def _plans_of_processors() -> list[RunPlan]:
    """Short runs of small models, as the launcher makes them."""
    shapes = [shape.overrides() for shape in learning_real.SHAPES]
    more = [[f"model.n_layer={n_layer}", f"model.n_embd={n_embd}", "trainer.n_steps=400"] for n_layer, n_embd in MORE]
    return [bill(*shape, "hw=cpu", "tracking=none", "calibration=off").plan for shape in [*shapes, *more]]


def _plans_of_cards() -> list[RunPlan]:
    """Hours of GPT-2."""
    return [
        bill(f"model={model}", f"trainer.micro_batch_size={size}", f"trainer.sequence_length={length}",
             f"trainer.tokens_per_step={64 * 1024}", "trainer.n_steps=3000", "hw=1x4090", "calibration=off").plan
        for model in ("gpt2_10m", "gpt2_124m", "gpt2_350m")
        for size, length in ((8, 512), (4, 1024), (2, 512), (8, 256), (2, 1024))
    ]  # fmt: skip


def told(promises: Sequence[tuple[str, bool]]) -> int:
    """A line each; 1 when one is broken."""
    for text, is_kept in promises:
        print(f"{'kept  ' if is_kept else 'BROKEN'} {text}")
    return 0 if all(is_kept for _, is_kept in promises) else 1


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
