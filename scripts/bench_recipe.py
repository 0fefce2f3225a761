"""How many tokens does `experiment=modern` need for the loss that nanoGPT's recipe reaches, and how much time?

python scripts/bench_recipe.py                          model=tiny on the embedded text, two seeds, some minutes
python scripts/bench_recipe.py --model gpt2_10m --tokens 16000000 --seeds 3 --fractions 0.5 0.75

Both train the same shape on the same data, batch, sequence and machine, in turn, each run with a schedule of its own
length. The baseline reads all the tokens, the modern recipe a fraction of them. For each seed the fraction that reaches
the baseline's held-out loss is interpolated between the runs (in the logarithm of the tokens), never beyond them:
"at most" is then what is shown. Time is that of the steps, measured alike; compile and start-up are left out.
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
RECIPES = {"nanogpt": (), "modern": ("experiment=modern",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run."""

    n_tokens: int
    val_loss: float
    steps_seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every seed needs at most the wanted fraction, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="for both, as for launch.py")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--tokens", type=int, help="of the baseline (default: the model's recipe)")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument(
        "--fractions", type=float, nargs="+", default=[0.25, 0.5, 0.75], help="of the baseline's tokens"
    )
    parser.add_argument("--wanted", type=float, default=0.75, help="fraction of the tokens that passes")
    parser.add_argument("--data-dir", type=Path, default=ROOT / "data")
    options = parser.parse_args(arguments)
    common = [f"model={options.model}", f"data.dir={options.data_dir}", *options.overrides]
    needed = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1337, 1337 + options.seeds):
            base = run([*common, f"seed={seed}"], "nanogpt", options.tokens, Path(folder))
            show(seed, "nanogpt", 1.0, base, base)
            trials = []
            for fraction in sorted(options.fractions):
                trial = run([*common, f"seed={seed}"], "modern", round(fraction * base.n_tokens), Path(folder))
                show(seed, "modern", trial.n_tokens / base.n_tokens, trial, base)
                trials.append(trial)
                if trial.val_loss < base.val_loss:  # more would only be better
                    break
            needed.append(fraction_needed(base, trials))
            print(
                f"seed {seed}: {told(base, trials)} of the tokens to a held-out loss of {base.val_loss:.4f}", flush=True
            )
    if any(fraction is None for fraction in needed):
        print("the modern recipe did not reach the baseline's loss")
        return 1
    fractions = [fraction for fraction in needed if fraction is not None]
    print(f"mean of {len(fractions)} seeds: {mean(fractions):.0%} of the tokens, worst {max(fractions):.0%}")
    return 0 if max(fractions) <= options.wanted else 1


def run(overrides: list[str], recipe: str, n_tokens: int | None, folder: Path) -> Trial:
    """One real run in a process of its own."""
    quiet = ["tracking=none", "calibration=off", "budget.max_hours=null", "trainer.checkpoint_interval=1000000"]
    length = [] if n_tokens is None else [f"trainer.total_tokens={n_tokens}"]
    runs_dir = Path(tempfile.mkdtemp(dir=folder))
    command = [
        sys.executable,
        str(ROOT / "launch.py"),
        f"runs_dir={runs_dir}",
        *RECIPES[recipe],
        *overrides,
        *length,
        *quiet,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    (run_dir,) = (path.parent for path in runs_dir.glob("*/actual.json"))
    actual: dict[str, Any] = json.loads((run_dir / "actual.json").read_text())["actual"]
    trainer = json.loads((run_dir / "plan.json").read_text())["plan"]["trainer"]
    return Trial(
        n_tokens=trainer["n_steps"] * trainer["tokens_per_step"],
        val_loss=actual["val_loss"],
        steps_seconds=actual["wall_terms_seconds"]["steps"],
    )


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


def show(seed: int, recipe: str, fraction: float, trial: Trial, base: Trial) -> None:
    """A line a run."""
    time_ratio = trial.steps_seconds / base.steps_seconds
    print(
        f"seed {seed} {recipe:<8} {trial.n_tokens:>12,} tokens ({fraction:4.0%})  held-out loss {trial.val_loss:.4f}"
        f"  {trial.steps_seconds:7.1f} s of steps ({time_ratio:.2f}x)",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
