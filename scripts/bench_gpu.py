"""On one NVIDIA card: is this trainer faster than nanoGPT compiled, and how much less memory does it need?

    python scripts/bench_gpu.py --baseline DIR          at most 8 minutes; without a card it says so and ends with 0

DIR is a checkout of github.com/karpathy/nanoGPT. gpt2_124m (50,304 tokens, 1,024 positions) in bf16 on random tokens,
one micro-batch a step: each trainer's own loop, compiled, optimizer and clipping included. Both run at micro-batch 12,
where their peaks of allocated memory are compared, then at larger ones as long as time and memory allow: the best
tokens/s of each count. Runs that do not fit are left out. Needs nothing from the network.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.trainer_runs import Measured, Recipe, run_nanogpt, run_ours

MIN_SPEEDUP, MAX_MEMORY_FRACTION = 1.15, 0.6
COMMON_MICRO_BATCH = 12
LARGER = (24, 48, 96)  # sequences
CHUNKED = ("trainer.loss_chunk_tokens=1024",)
VARIANTS: dict[str, tuple[str, ...]] = {
    "ours": (),
    "ours, loss in chunks": CHUNKED,
    "ours, chunks and recomputation": (*CHUNKED, "trainer.activation_checkpointing=selective"),
}
N_STEPS = 30
VOCAB_SIZE, SEQUENCE_LENGTH, N_TOKENS = 50_304, 1024, 4_000_000
Runs = dict[int, Measured]


def main() -> None:
    """Both trainers in turn, until the time is up."""
    options = parse(sys.argv[1:])
    started = time.monotonic()
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # one card, also where there are more
    card = card_name()
    if card is None:
        print("no NVIDIA card, or PyTorch without CUDA: nothing to measure")
        return
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        work = Path(folder)
        recipe = make_recipe(work / "tokens")

        def theirs(n: int) -> Measured:
            return run_nanogpt(sized(recipe, n), options.baseline, work, N_STEPS, compiles=True)

        def ours(overrides: tuple[str, ...], n: int) -> Measured:
            both = ("trainer.precision=bf16", "trainer.compile=true")
            return run_ours(sized(recipe, n), work, N_STEPS, *both, *overrides)

        contestants: dict[str, Callable[[int], Measured]] = {"nanoGPT": theirs}
        contestants |= {name: partial(ours, overrides) for name, overrides in VARIANTS.items()}
        runs = race(contestants, lambda: options.max_seconds - (time.monotonic() - started))
    report(card, runs, as_json=options.json, seconds=time.monotonic() - started)


def race(contestants: dict[str, Callable[[int], Measured]], seconds_left: Callable[[], float]) -> dict[str, Runs]:
    """The common micro-batch first; who does not fit drops out; the longest run so far must fit into what is left."""
    runs: dict[str, Runs] = {name: {} for name in contestants}
    longest = 0.0
    for n in (COMMON_MICRO_BATCH, *LARGER):
        for name, contestant in contestants.items():
            if n > COMMON_MICRO_BATCH and (len(runs[name]) == 0 or seconds_left() < 1.2 * longest):
                continue
            begun = time.monotonic()
            try:
                runs[name][n] = contestant(n)
            except SystemExit as error:  # mostly out of memory: its words say it
                print(f"{name} at {n}: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
            longest = max(longest, time.monotonic() - begun)
    return runs


def report(card: str, runs: dict[str, Runs], *, as_json: bool, seconds: float) -> None:
    """Every run, then the two questions."""
    best = {
        name: max(of_one.values(), key=lambda run: run.tokens_per_second) for name, of_one in runs.items() if of_one
    }
    ours = [name for name in best if name != "nanoGPT"]
    if "nanoGPT" not in best or not ours:
        raise SystemExit("one of the two did not run: nothing to compare")
    speedup = max(best[name].tokens_per_second for name in ours) / best["nanoGPT"].tokens_per_second
    peak = {name: runs[name][COMMON_MICRO_BATCH].peak_bytes for name in best if COMMON_MICRO_BATCH in runs[name]}
    memory = min(peak[name] for name in ours if name in peak) / peak["nanoGPT"]
    if as_json:
        rows = {name: {n: asdict(run) for n, run in of_one.items()} for name, of_one in runs.items()}
        print(json.dumps({"card": card, "runs": rows, "speedup": speedup, "memory_fraction": memory}, indent=1))
        return
    print(f"{card}, {seconds:.0f} s in all\n{'':32}{'sequences':>9}{'tokens/s':>10}{'peak GiB':>10}{'first + s':>11}")
    for name, of_one in runs.items():
        for n, run in of_one.items():
            numbers = (
                f"{run.tokens_per_second:10,.0f}{run.peak_bytes / 2**30:10.2f}{run.first_step_excess_seconds:11.1f}"
            )
            print(f"{name:32}{n:9}{numbers}")
    print(f"best against best: {speedup:.2f}x (target {MIN_SPEEDUP}x)")
    print(f"memory at {COMMON_MICRO_BATCH} sequences: {memory:.2f}x (target at most {MAX_MEMORY_FRACTION}x)")


def make_recipe(folder: Path) -> Recipe:
    """gpt2_124m as both call it, and random tokens: the time of a step does not depend on them."""
    import numpy as np

    folder.mkdir()
    random = np.random.default_rng(0)
    for name, n in {"train.bin": N_TOKENS, "val.bin": N_TOKENS // 10}.items():
        random.integers(0, VOCAB_SIZE, n, dtype=np.uint16).tofile(folder / name)
    return Recipe(
        model="gpt2_124m",
        shape={"n_layer": 12, "n_head": 12, "n_embd": 768, "dropout": 0.0, "bias": False},
        vocab_size=VOCAB_SIZE,
        micro_batch_size=COMMON_MICRO_BATCH,
        sequence_length=SEQUENCE_LENGTH,
        learning_rate=6e-4,
        data=folder,
        is_on_card=True,
    )


def sized(recipe: Recipe, micro_batch_size: int) -> Recipe:
    """The same at another micro-batch."""
    return replace(recipe, micro_batch_size=micro_batch_size)


def card_name() -> str | None:
    """Of the first one; None: there is none that PyTorch can use."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() and torch.version.cuda else None


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", type=Path, required=True, help="a nanoGPT checkout")
    parser.add_argument("--max-seconds", type=float, default=450.0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
