"""Is this trainer faster than nanoGPT, at what memory, and does it learn as much from the same tokens?

    python scripts/bench_trainer.py --baseline DIR                 speed: runs in turn, medians of the ratios (~6 min)
    python scripts/bench_trainer.py --baseline DIR --short         the same, two short rounds (~2 min)
    python scripts/bench_trainer.py --baseline DIR --loss          held-out loss at equal tokens, 3 seeds x 300 steps
    python scripts/bench_trainer.py --ranks                        two ranks on two cores against one on one

DIR is a checkout of github.com/karpathy/nanoGPT; nothing is written into it. Its train.py runs as its README runs it on
a processor (`--device=cpu --compile=False`; it computes in fp32 whatever its dtype), with this model's shape, data,
batch, schedule and seed; `--baseline-compile` lets it compile. Steady state is the median of the steps after the first
five; what the first step took beyond that (compiling, first-time work) is shown apart; peak memory is the kernel's
count of the whole process. Both losses are of the same held-out windows. Model: gpt2_10m, 16 x 256 tokens a step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.trainer_runs import ROOT, Measured, Recipe, run_nanogpt, run_ours

SEEDS = (1337, 1338, 1339)
TARGETS = {"fp32": 1.0, "medium": 1.5, "bf16": 2.8}
RANK_TARGETS = {("fp32", 1): 1.7, ("fp32", 4): 1.7, ("bf16", 1): 1.45, ("bf16", 4): 1.6}
LOSS_MARGIN = 0.02
RECIPE = Recipe(
    model="gpt2_10m",
    shape={"n_layer": 6, "n_head": 6, "n_embd": 384, "dropout": 0.0, "bias": False},  # conf/model/gpt2_10m.yaml
    vocab_size=256,
    micro_batch_size=16,
    sequence_length=256,
    learning_rate=1e-3,
    data=ROOT / "data" / "stdlib",
    is_on_card=False,
)
VARIANTS = {
    "fp32": ("trainer.precision=fp32",),
    "medium": ("trainer.precision=fp32", "trainer.float32_matmul_precision=medium"),
    "bf16": ("trainer.precision=bf16",),
    "bf16+compile": ("trainer.precision=bf16", "trainer.compile=true"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    tokens_per_second: float
    speedup: float  # median over rounds of the ratio to the neighbour in time
    spread: tuple[float, float]  # its smallest and largest value
    peak_bytes: int
    first_step_excess_seconds: float
    target: float | None


def main() -> None:
    """Run what is asked for, print a table or JSON."""
    options = parse(sys.argv[1:])
    recipe = replace(RECIPE, n_threads=options.threads, micro_batch_size=options.micro_batch)
    with tempfile.TemporaryDirectory(prefix="bench-trainer-") as folder:
        bench = ranks if options.ranks else losses if options.loss else speed
        document = bench(recipe, Path(folder), options)
    if options.json:
        print(json.dumps(document, indent=1))
    sys.exit(0 if document["met"] or not options.check else 1)


def speed(recipe: Recipe, work: Path, options: argparse.Namespace) -> dict[str, object]:
    """Each round runs the baseline, then every variant; ratios are taken within a round."""
    names = options.variants or ["fp32", "medium", "bf16"]
    n_rounds, n_steps = (2, 10) if options.short else (options.rounds, options.steps or 16)
    theirs: list[Measured] = []
    runs: dict[str, list[Measured]] = {name: [] for name in names}
    for _ in range(n_rounds):
        theirs.append(run_nanogpt(recipe, options.baseline, work, n_steps, compiles=options.baseline_compile))
        for name in names:
            runs[name].append(run_ours(recipe, work, n_steps, *VARIANTS[name], *options.overrides))
    rows = [row("nanoGPT fp32" + (" compiled" if options.baseline_compile else ""), theirs, theirs, None)]
    rows += [row(name, runs[name], theirs, TARGETS.get(name)) for name in names]
    show(rows, options, f"{n_rounds} rounds of {n_steps} steps, {options.threads} thread(s), {processor()}")
    met = all(line.target is None or line.speedup >= line.target for line in rows)
    return {"rows": [asdict(line) for line in rows], "processor": processor(), "met": met}


def row(name: str, runs: Sequence[Measured], base: Sequence[Measured], target: float | None) -> Row:
    """Medians; the ratio of each round by itself."""
    ratios = [b.step_seconds / a.step_seconds for a, b in zip(runs, base, strict=True)]
    return Row(
        name=name,
        tokens_per_second=statistics.median(run.tokens_per_second for run in runs),
        speedup=statistics.median(ratios),
        spread=(min(ratios), max(ratios)),
        peak_bytes=max(run.peak_bytes for run in runs),
        first_step_excess_seconds=statistics.median(run.first_step_excess_seconds for run in runs),
        target=target,
    )


def show(rows: Sequence[Row], options: argparse.Namespace, headline: str) -> None:
    """A table on stdout, or on stderr beside JSON."""
    out = sys.stderr if options.json else sys.stdout
    print(headline, file=out)
    print(
        f"{'':26}{'tokens/s':>9}{'ratio':>8}{'lowest - highest':>19}{'peak GiB':>10}{'first + s':>11}  target", file=out
    )
    for line in rows:
        target = (
            "" if line.target is None else f">= {line.target}" + ("" if line.speedup >= line.target else "  MISSED")
        )
        spread = f"{line.spread[0]:.2f} - {line.spread[1]:.2f}"
        print(
            f"{line.name:26}{line.tokens_per_second:9,.0f}{line.speedup:7.2f}x{spread:>19}"
            f"{line.peak_bytes / 2**30:10.2f}{line.first_step_excess_seconds:11.1f}  {target}",
            file=out,
        )


def losses(recipe: Recipe, work: Path, options: argparse.Namespace) -> dict[str, object]:
    """Held-out loss after the same number of tokens, the mean over seeds."""
    out = sys.stderr if options.json else sys.stdout
    names = options.variants or ["bf16"]
    n_steps = options.steps or (100 if options.short else 300)
    seeds = SEEDS[:1] if options.short else SEEDS
    found: dict[str, list[float]] = {name: [] for name in ["nanoGPT", *names]}
    for seed in seeds:
        for name in names:
            overrides = (*VARIANTS[name], *options.overrides, f"seed={seed}")
            found[name].append(run_ours(recipe, work, n_steps, *overrides, ends_with_loss=True).val_loss)
        theirs = run_nanogpt(recipe, options.baseline, work, n_steps, compiles=False, seed=seed, ends_with_loss=True)
        found["nanoGPT"].append(theirs.val_loss)
        print(f"seed {seed}: " + "  ".join(f"{name} {values[-1]:.4f}" for name, values in found.items()), file=out)
    mean = {name: statistics.mean(values) for name, values in found.items()}
    met = all(mean[name] <= mean["nanoGPT"] + LOSS_MARGIN for name in names)
    line = "  ".join(f"{name} {value:.4f}" for name, value in mean.items())
    print(f"mean of {len(seeds)} after {n_steps} steps: {line}  (at most +{LOSS_MARGIN}: {met})", file=out)
    return {"n_steps": n_steps, "val_loss": found, "mean": mean, "met": met}


def ranks(recipe: Recipe, work: Path, options: argparse.Namespace) -> dict[str, object]:
    """The same global batch: one rank on one core, then two ranks, each with half of its micro-batches."""
    n_rounds, n_steps = (1, 8) if options.short else (options.rounds, options.steps or 10)
    alone, pair = replace(recipe, n_threads=1, cores="0"), replace(recipe, cores="0,1")
    rows, met = [], True
    for (precision, n_accumulated), target in RANK_TARGETS.items():
        batch = f"trainer.tokens_per_step={2 * n_accumulated * recipe.tokens_per_step}"
        one, two = [], []
        for _ in range(n_rounds):
            one.append(run_ours(alone, work, n_steps, *VARIANTS[precision], *options.overrides, batch))
            two.append(run_ours(pair, work, n_steps, *VARIANTS[precision], *options.overrides, batch, "hw=2xcpu"))
        rows.append(row(f"{precision}, accumulation {n_accumulated}", two, one, target))
        met = met and rows[-1].speedup >= target
    show(rows, options, f"two ranks on two cores against one on one, {n_rounds} round(s), {processor()}")
    return {"rows": [asdict(line) for line in rows], "processor": processor(), "met": met}


def processor() -> str:
    """What decides the ratio: bf16 tiles (amx), bf16 dot products (avx512_bf16), or neither."""
    facts = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    flags = facts.get("flags", "").split()
    has = "amx_bf16" if "amx_bf16" in flags else "avx512_bf16" if "avx512_bf16" in flags else "no bf16"
    return f"{facts.get('model name', 'unknown')} ({has})"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", type=Path, help="a nanoGPT checkout")
    parser.add_argument("--baseline-compile", action="store_true", help="let nanoGPT compile its model")
    parser.add_argument("--loss", action="store_true", help="held-out loss at equal tokens instead of speed")
    parser.add_argument("--ranks", action="store_true", help="two ranks against one instead of nanoGPT")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), help="which of ours")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="of each run")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--micro-batch", type=int, default=RECIPE.micro_batch_size, help="sequences, for a quicker --loss"
    )
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("overrides", nargs="*", help="of this trainer, such as trainer.attention=sdpa")
    options = parser.parse_args(arguments)
    if options.baseline is None and not options.ranks:
        parser.error("--baseline DIR: a checkout of github.com/karpathy/nanoGPT")
    return options


if __name__ == "__main__":
    main()
