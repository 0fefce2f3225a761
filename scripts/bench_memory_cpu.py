"""How far off is the memory of real runs on this processor, before and after runs have been measured?

    python scripts/bench_memory_cpu.py [--n-random 8] [--seed 0] [--json]      about 15 s a configuration

Each configuration is trained for three steps by `launch.py` (peak resident set of the worker), and its tensors are
counted under PyTorch's profiler by `scripts/trace_memory.py --real`. Four configurations are given, the others drawn by
the seed; the first two run twice. After calibration: each run judged with the ledger of all other configurations
(others), and a second run with the ledger that holds the first (same shape).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from launch import bill
from preflight.memory.peak import estimate_memory
from preflight.units import MIB
from scripts import accuracy_page
from scripts.trace_memory import measure_bytes, tensors_bytes

GIVEN = (
    ("tiny", 16, 256, "fp32", "none"),
    ("gpt2_10m", 4, 256, "bf16", "full"),
    ("gpt2_124m", 1, 256, "fp32", "none"),
    ("gpt2_10m", 8, 256, "fp32", "none"),
)
SIZES = {"tiny": (1, 4, 8, 16), "gpt2_10m": (1, 2, 4, 8, 16), "gpt2_124m": (1, 2)}
N_TWICE = 2
Configuration = tuple[str, int, int, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One configuration: bytes, estimated and measured."""

    label: str
    tensors: tuple[int, int]
    resident: tuple[int, int]
    is_covered: bool
    after_others: float | None
    after_same: float | None


def drawn(n: int, seed: int) -> list[Configuration]:
    """By the seed alone."""
    draw = random.Random(seed)
    chosen: list[Configuration] = []
    while len(chosen) < n:
        model = draw.choice([*SIZES])
        one = (
            model, draw.choice(SIZES[model]), draw.choice((128, 256)), draw.choice(("fp32", "bf16")),
            draw.choice(("none", "full")),
        )  # fmt: skip
        if one not in chosen and one not in GIVEN:
            chosen.append(one)
    return chosen


def overrides(one: Configuration) -> list[str]:
    """As typed."""
    model, size, length, precision, recompute = one
    return [
        f"model={model}", "hw=cpu", "tracking=none",
        f"trainer.micro_batch_size={size}", f"trainer.sequence_length={length}",
        f"trainer.tokens_per_step={size * length}", f"trainer.precision={precision}",
        f"trainer.activation_checkpointing={recompute}", "trainer.n_steps=3", "trainer.compile=false",
        f"trainer.eval_tokens={size * length}", "trainer.checkpoint_interval=3", "lowering.policy=off",
    ]  # fmt: skip


def run(one: Configuration, runs_dir: Path, data: Sequence[str]) -> int:
    """Peak resident set of the worker, in bytes."""
    before = set(runs_dir.glob("*/actual.json"))
    command = [sys.executable, str(ROOT / "launch.py"), *overrides(one), *data, f"runs_dir={runs_dir}"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    new = set(runs_dir.glob("*/actual.json")) - before
    if finished.returncode != 0 or not new:
        raise SystemExit(f"{' '.join(command)} ended with {finished.returncode}:\n{finished.stderr[-2000:]}")
    content: dict[str, Any] = json.loads(new.pop().read_text())
    return int(content["actual"]["peak_device_bytes"])


def judge(one: Configuration, measured: Sequence[int], ledger: Path, data: Sequence[str]) -> Measured:
    """Before and after calibration; `measured` holds its runs, oldest first."""
    plan = bill(*overrides(one), *data, "calibration=off").plan
    memory = estimate_memory(plan)
    lines = ledger.read_text().splitlines()
    own = [line for line in lines if is_run_of(json.loads(line), one)]
    others = [line for line in lines if line not in own]
    return Measured(
        label=" ".join(map(str, one)),
        tensors=(tensors_bytes(memory), measure_bytes(plan)),
        resident=(int(memory.device.mid), measured[0]),
        is_covered=memory.device.low <= measured[0] <= memory.device.high,
        after_others=_error_with(one, others, measured[0], data),
        after_same=_error_with(one, [*others, own[0]], measured[1], data) if len(measured) > 1 else None,
    )


def is_run_of(record: dict[str, Any], one: Configuration) -> bool:
    """By what was typed."""
    plan = record["plan"]
    trainer = plan["trainer"]
    return one == (
        plan["model"]["name"], trainer["micro_batch_size"], trainer["sequence_length"], trainer["precision"],
        trainer["activation_checkpointing"],
    )  # fmt: skip


def _error_with(one: Configuration, lines: Sequence[str], measured: int, data: Sequence[str]) -> float | None:
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False) as file:
        file.write("\n".join(lines) + "\n")
    plan = bill(*overrides(one), *data, f"calibration={file.name}").plan
    Path(file.name).unlink()
    return estimate_memory(plan).device.mid / measured - 1


def summary(judged: Sequence[Measured]) -> dict[str, float | int | None]:
    """Errors are fractions of the measured value."""

    def sizes(values: Sequence[float | None]) -> list[float]:
        return sorted(abs(value) for value in values if value is not None)

    tensors = sizes([one.tensors[0] / one.tensors[1] - 1 for one in judged])
    resident = sizes([one.resident[0] / one.resident[1] - 1 for one in judged])
    same, others = sizes([one.after_same for one in judged]), sizes([one.after_others for one in judged])
    return {
        "n": len(judged),
        "tensors_median_error": statistics.median(tensors), "tensors_worst_error": tensors[-1],
        "resident_median_error": statistics.median(resident), "resident_worst_error": resident[-1],
        "resident_coverage": sum(one.is_covered for one in judged) / len(judged),
        "calibrated_same_shape_median_error": statistics.median(same) if same else None,
        "calibrated_others_median_error": statistics.median(others) if others else None,
    }  # fmt: skip


def as_text(judged: Sequence[Measured]) -> str:
    """A line a configuration."""
    lines = [f"{'configuration':36}{'tensors':>17}{'off':>8}{'resident':>17}{'off':>8}  covered  others    same"]
    for one in judged:
        (t, t_measured), (r, r_measured) = one.tensors, one.resident
        after = [f"{'':>8}" if error is None else f"{error:>+8.1%}" for error in (one.after_others, one.after_same)]
        covered, tail = "yes" if one.is_covered else "no", "".join(after)
        lines.append(
            f"{one.label:36}{t / MIB:>8.0f}{t_measured / MIB:>9.0f}{t / t_measured - 1:>+8.1%}{r / MIB:>8.0f}"
            f"{r_measured / MIB:>9.0f}{r / r_measured - 1:>+8.1%}  {covered:7}{tail}"
        )
    return "\n".join(lines)


def measure(n_random: int, seed: int) -> list[Measured]:
    """All of them, in a folder that is thrown away."""
    configurations = [*GIVEN, *drawn(n_random, seed)]
    with tempfile.TemporaryDirectory() as folder:
        runs_dir = Path(folder)
        data = (f"data.dir={folder}/data",)
        measured = []
        for i, one in enumerate(configurations):
            given = (*data, *_bin(one, folder))
            measured.append([run(one, runs_dir, given) for _ in range(2 if i < N_TWICE else 1)])
            print(f"ran {' '.join(map(str, one))}", file=sys.stderr, flush=True)
        return [
            judge(one, peaks, runs_dir / "ledger.jsonl", (*data, *_bin(one, folder)))
            for one, peaks in zip(configurations, measured, strict=True)
        ]


def _bin(one: Configuration, folder: str) -> tuple[str, ...]:
    """BPE models read ready token files; noise has the right size too."""
    if one[0] != "gpt2_124m":
        return ()
    import numpy as np

    place = Path(folder) / "noise"
    place.mkdir(exist_ok=True)
    tokens = np.random.default_rng(0).integers(0, 50_000, 200_000, dtype=np.uint16)
    for name in ("train.bin", "val.bin"):
        tokens.tofile(place / name)
    return ("data=bin", f"data.path={place}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Always 0: a measurement, not a verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-random", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--write", type=Path, metavar="docs/accuracy.md", help="its section of that page")
    options = parser.parse_args(arguments)
    judged = measure(options.n_random, options.seed)
    if options.json:
        print(json.dumps(summary(judged), indent=1))
        return 0
    values = [
        f"{name:38} {value if value is None or name == 'n' else f'{value:.2%}'}"
        for name, value in summary(judged).items()
    ]
    text = "\n".join([as_text(judged), "", *values])
    print(text)
    if options.write is not None:
        introduction = "`python scripts/bench_memory_cpu.py --write docs/accuracy.md`\n\nMiB, estimated and measured."
        body = f"{introduction}\n\n{accuracy_page.code(text)}"
        accuracy_page.put_section(options.write, "memory on a processor", "Memory of real runs on a processor", body)
    return 0


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
