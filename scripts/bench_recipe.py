"""How many tokens does `experiment=modern` need for the loss that nanoGPT's recipe reaches, and how much time?

python scripts/bench_recipe.py                          model=tiny on the embedded text, two seeds, some minutes
python scripts/bench_recipe.py --model gpt2_10m --tokens 16000000 --seeds 3 --fractions 0.5 0.75

Both train the same shape on the same data, batch, sequence and machine, in turn, each run with a schedule of its own
length. The baseline reads all the tokens, at the best of several learning rates (found with the first seed); the modern
recipe, which is not tuned, a fraction of them. For each seed the fraction that reaches the baseline's held-out loss is
interpolated between the runs (in the logarithm of the tokens), never beyond them: "at most" is then what is shown.
Time is that of the steps, measured alike; compile and start-up are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

FIRST_SEED = 1337
RECIPES = {"nanogpt": (), "modern": ("experiment=modern",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run."""

    n_tokens: int
    learning_rate: float
    val_loss: float
    steps_seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every seed needs at most the wanted fraction, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="for both, as for launch.py")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--tokens", type=int, help="of the baseline (default: the model's recipe)")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.5, 1.0, 2.0], help="times the learning rate")
    parser.add_argument("--fractions", type=float, nargs="+", default=[0.125, 0.25, 0.5, 0.75], help="of the tokens")
    parser.add_argument("--wanted", type=float, default=0.75, help="fraction of the tokens that passes")
    parser.add_argument("--data-dir", type=Path, default=ROOT / "data")
    options = parser.parse_args(arguments)
    common = [f"model={options.model}", f"data.dir={options.data_dir}", *options.overrides]
    bench = Bench(common, options.tokens)
    rate, needed = bench.best_rate(options.rates), []
    for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
        base = bench.run(seed, "nanogpt", options.tokens, rate)
        trials: list[Trial] = []
        for fraction in sorted(options.fractions):
            trials.append(bench.run(seed, "modern", round(fraction * base.n_tokens)))
            if trials[-1].val_loss < base.val_loss:  # more would only be better
                break
        needed.append(fraction_needed(base, trials))
        last, time_ratio = trials[-1].val_loss, trials[-1].steps_seconds / base.steps_seconds
        print(f"seed {seed}: {told(base, trials)} of the tokens to a held-out loss of {base.val_loss:.4f}")
        print(f"seed {seed}: {last:.4f} after {time_ratio:.2f}x the time", flush=True)
    fractions = [fraction for fraction in needed if fraction is not None]
    if len(fractions) < len(needed):
        print("the modern recipe did not reach the baseline's loss")
        return 1
    print(f"mean of {len(fractions)} seeds: {mean(fractions):.0%} of the tokens, worst {max(fractions):.0%}")
    return 0 if max(fractions) <= options.wanted else 1


class Bench:
    """Real runs in processes of their own; the same one is not run twice."""

    def __init__(self, common: list[str], n_tokens: int | None) -> None:
        self.common, self.n_tokens, self.done = common, n_tokens, dict[tuple[Any, ...], Trial]()

    def best_rate(self, multiples: Sequence[float]) -> float:
        """The baseline's, by held-out loss with the first seed."""
        losses = {multiple: self.run(FIRST_SEED, "nanogpt", self.n_tokens, multiple).val_loss for multiple in multiples}
        return min(losses, key=losses.__getitem__)

    def run(self, seed: int, recipe: str, n_tokens: int | None, rate: float = 1.0) -> Trial:
        """And a line about it."""
        key = (seed, recipe, n_tokens, rate)
        if key not in self.done:
            self.done[key] = trial = train([*self.common, f"seed={seed}"], recipe, n_tokens, rate)
            print(
                f"seed {seed} {recipe:<8} {trial.n_tokens:>12,} tokens  learning rate {trial.learning_rate:.2g}"
                f"  held-out loss {trial.val_loss:.4f}  {trial.steps_seconds:7.1f} s of steps",
                flush=True,
            )
        return self.done[key]


def train(overrides: list[str], recipe: str, n_tokens: int | None, rate: float) -> Trial:
    """One real run."""
    quiet = ["tracking=none", "calibration=off", "budget.max_hours=null", "trainer.checkpoint_interval=1000000"]
    length = [] if n_tokens is None else [f"trainer.total_tokens={n_tokens}"]
    tuned = [] if rate == 1.0 else [f"trainer.learning_rate={rate * recipe_rate(overrides):.6g}"]
    with tempfile.TemporaryDirectory() as runs_dir:
        command = [sys.executable, str(ROOT / "launch.py"), f"runs_dir={runs_dir}", *RECIPES[recipe]]
        command += [*overrides, *length, *tuned, *quiet]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        (run_dir,) = (path.parent for path in Path(runs_dir).glob("*/actual.json"))
        actual: dict[str, Any] = json.loads((run_dir / "actual.json").read_text())["actual"]
        trainer = json.loads((run_dir / "plan.json").read_text())["plan"]["trainer"]
    return Trial(
        n_tokens=trainer["n_steps"] * trainer["tokens_per_step"],
        learning_rate=trainer["learning_rate"],
        val_loss=actual["val_loss"],
        steps_seconds=actual["wall_terms_seconds"]["steps"],
    )


def recipe_rate(overrides: Sequence[str]) -> float:
    """The learning rate of the model's own recipe."""
    from launch import bill

    return bill(*overrides, "calibration=off", "lowering.policy=off", "trainer.n_steps=1").plan.trainer.learning_rate


def fraction_needed(base: Trial, trials: Sequence[Trial]) -> float | None:
    """Of the baseline's tokens, to its loss; None: not reached. The shortest run's when that is better already."""
    reached = [trial for trial in trials if trial.val_loss <= base.val_loss]
    if not reached:
        return None
    after = min(reached, key=lambda trial: trial.n_tokens)
    shorter = [trial for trial in trials if trial.n_tokens < after.n_tokens]
    if not shorter:
        return after.n_tokens / base.n_tokens
    before = max(shorter, key=lambda trial: trial.n_tokens)
    way = (before.val_loss - base.val_loss) / (before.val_loss - after.val_loss)
    n_tokens = math.exp(math.log(before.n_tokens) + way * math.log(after.n_tokens / before.n_tokens))
    return n_tokens / base.n_tokens


def told(base: Trial, trials: Sequence[Trial]) -> str:
    """The fraction in words."""
    fraction = fraction_needed(base, trials)
    if fraction is None:
        return "more than all tried"
    is_bound = trials[0].val_loss <= base.val_loss
    return f"{'at most ' if is_bound else ''}{fraction:.0%}"


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
