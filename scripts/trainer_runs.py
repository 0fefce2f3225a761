"""One run of this trainer, or of nanoGPT, as a process of its own: what did it measure? (bench_trainer, bench_gpu)"""

from __future__ import annotations

import json
import os
import pickle
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WARMUP_FRACTION, EVAL_TOKENS = 0.02, 100_000
N_SETTLING_STEPS = 5
SEED_LINE = "torch.manual_seed(1337 + seed_offset)"  # of nanoGPT's train.py
PEAK_LINE = "peak allocated"

# nanoGPT's train.py, then what its allocator has seen
WITH_PEAK = f"""\
import runpy, torch
runpy.run_path("train.py", run_name="__main__")
print("{PEAK_LINE}", torch.cuda.max_memory_allocated())
"""
# nanoGPT's last checkpoint on the held-out windows of a plan of ours
HELD_OUT = """\
import json, sys
checkout, checkpoint, plan, root = sys.argv[1:]
sys.path[:0] = [checkout, root]
import torch
from model import GPT, GPTConfig
from preflight.machine.snapshot import World
from preflight.plan import RunPlan
from preflight.planfile import from_jsonable
from trainers.data import eval_batches
saved = torch.load(checkpoint, map_location="cpu", weights_only=False)
model = GPT(GPTConfig(**saved["model_args"]))
model.load_state_dict({name.removeprefix("_orig_mod."): value for name, value in saved["model"].items()})
model.eval()
total, count = 0.0, 0
plan = from_jsonable(RunPlan, json.load(open(plan))["plan"])
world = World(rank=0, local_rank=0, world_size=1, local_world_size=1)
with torch.no_grad():
    for inputs, targets, n in eval_batches(plan, world, torch.device("cpu")):
        total, count = total + model(inputs, targets)[1].item() * n, count + n
print("held out", total / count)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What both train, on what."""

    model: str  # ours; nanoGPT gets its shape
    shape: dict[str, int | float | bool]
    vocab_size: int
    micro_batch_size: int
    sequence_length: int
    learning_rate: float
    data: Path  # a folder with train.bin and val.bin (uint16)
    is_on_card: bool
    n_threads: int = 1
    cores: str = ""  # taskset's list

    @property
    def tokens_per_step(self) -> int:
        """One micro-batch."""
        return self.micro_batch_size * self.sequence_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of one run."""

    step_seconds: float  # median after the first steps
    tokens_per_second: float
    peak_bytes: int  # of the whole process on a processor, of the allocator on a card
    first_step_excess_seconds: float  # compiling, first-time work
    val_loss: float  # nan: not asked for


def run_ours(recipe: Recipe, work: Path, n_steps: int, *overrides: str, ends_with_loss: bool = False) -> Measured:
    """`launch.py`, with what a user would get."""
    runs = work / "runs"
    before = set(runs.glob("*/actual.json"))
    settings = {
        "model": recipe.model, "data": "bin", "data.path": recipe.data, "hw": "auto" if recipe.is_on_card else "cpu",
        "tracking": "none", "runs_dir": runs, "calibration": "off", "lowering.policy": "off", "budget.max_hours": 100,
        "trainer.micro_batch_size": recipe.micro_batch_size, "trainer.tokens_per_step": recipe.tokens_per_step,
        "trainer.sequence_length": recipe.sequence_length, "trainer.n_steps": n_steps, "trainer.eval_interval": 0,
        "trainer.eval_tokens": EVAL_TOKENS if ends_with_loss else recipe.tokens_per_step,
        "trainer.learning_rate": recipe.learning_rate, "trainer.warmup_fraction": WARMUP_FRACTION,
        **dict(override.split("=", 1) for override in overrides),
    }  # fmt: skip
    command = [sys.executable, str(ROOT / "launch.py"), *(f"{name}={value}" for name, value in settings.items())]
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    if not recipe.is_on_card and settings["hw"] == "cpu":  # several ranks share the cores by themselves
        environment["OMP_NUM_THREADS"] = str(recipe.n_threads)
    output, _ = start(command, recipe.cores, environment, work)
    written = set(runs.glob("*/actual.json")) - before
    if len(written) != 1:
        raise SystemExit(f"{' '.join(command)} left no actual.json:\n{output}")
    actual = json.loads(written.pop().read_text())["actual"]
    return Measured(
        step_seconds=actual["step_seconds"],
        tokens_per_second=actual["tokens_per_second"],
        peak_bytes=actual["peak_allocated_bytes"] or actual["peak_device_bytes"],
        first_step_excess_seconds=actual["wall_terms_seconds"]["compile"],
        val_loss=actual["val_loss"],
    )


def run_nanogpt(
    recipe: Recipe,
    checkout: Path,
    work: Path,
    n_steps: int,
    *,
    compiles: bool,
    seed: int = 1337,
    ends_with_loss: bool = False,
) -> Measured:
    """Its train.py in a folder of links, since it reads ./configurator.py and ./data/NAME; what it printed."""
    folder = nanogpt_folder(recipe, checkout, work, seed)
    settings = {
        **recipe.shape, "dataset": "bench", "compile": compiles, "out_dir": "out", "log_interval": 1, "eval_iters": 1,
        "device": "cuda" if recipe.is_on_card else "cpu", "dtype": "bfloat16" if recipe.is_on_card else "float32",
        "batch_size": recipe.micro_batch_size, "block_size": recipe.sequence_length, "gradient_accumulation_steps": 1,
        "max_iters": n_steps, "lr_decay_iters": n_steps, "warmup_iters": max(1, round(WARMUP_FRACTION * n_steps)),
        "learning_rate": recipe.learning_rate, "min_lr": recipe.learning_rate / 10,
        "eval_interval": n_steps if ends_with_loss else n_steps + 1,
    }  # fmt: skip
    program = ["-c", WITH_PEAK] if recipe.is_on_card else ["train.py"]
    command = [sys.executable, *program, *(f"--{name}={value}" for name, value in settings.items())]
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve())}
    if not recipe.is_on_card:
        environment["OMP_NUM_THREADS"] = str(recipe.n_threads)
    output, peak_bytes = start(command, recipe.cores, environment, folder)
    seconds = [float(ms) / 1e3 for ms in re.findall(r"^iter \d+: .*time ([\d.]+)ms", output, re.MULTILINE)]
    step_seconds = statistics.median(seconds[N_SETTLING_STEPS:n_steps])  # an evaluation may belong to the last
    if recipe.is_on_card:
        peak_bytes = int(output.rsplit(PEAK_LINE, 1)[1])
    return Measured(
        step_seconds=step_seconds,
        tokens_per_second=recipe.tokens_per_step / step_seconds,
        peak_bytes=peak_bytes,
        first_step_excess_seconds=seconds[0] - step_seconds,
        val_loss=_held_out(recipe.cores, checkout, folder, work) if ends_with_loss else float("nan"),
    )


def nanogpt_folder(recipe: Recipe, checkout: Path, work: Path, seed: int) -> Path:
    """Its seed is a constant of train.py, which is copied with another."""
    folder = work / f"nanogpt-{seed}"
    data = folder / "data" / "bench"
    if not folder.exists():
        source = (checkout / "train.py").read_text()
        if SEED_LINE not in source:
            raise SystemExit(f"{checkout}/train.py is not nanoGPT's: it has no {SEED_LINE}")
        data.mkdir(parents=True)
        (folder / "train.py").write_text(source.replace(SEED_LINE, SEED_LINE.replace("1337", str(seed))))
        (folder / "configurator.py").symlink_to((checkout / "configurator.py").resolve())
        for name in ("train.bin", "val.bin"):
            (data / name).symlink_to(recipe.data / name)
        (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": recipe.vocab_size}))
    return folder


def _held_out(cores: str, checkout: Path, folder: Path, work: Path) -> float:
    """On the windows of our last run with `ends_with_loss`, which comes first."""
    plan = max(work.glob("runs/*/plan.json"), key=lambda path: path.stat().st_mtime)
    command = [
        sys.executable,
        "-c",
        HELD_OUT,
        str(checkout.resolve()),
        str(folder / "out/ckpt.pt"),
        str(plan),
        str(ROOT),
    ]
    output, _ = start(command, cores, dict(os.environ), folder)
    return float(output.rsplit("held out", 1)[1])


def start(command: Sequence[str], cores: str, environment: dict[str, str], folder: Path) -> tuple[str, int]:
    """Run to the end: its output and the most memory it ever occupied. A failure ends the bench with its words."""
    folder.mkdir(parents=True, exist_ok=True)
    pinned = ["taskset", "-c", cores, *command] if cores else list(command)
    process = subprocess.Popen(
        pinned, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=folder
    )
    assert process.stdout is not None
    with process.stdout as stream:
        output = stream.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:2])} ... ended with {process.returncode}:\n{output[-3000:]}")
    return output, usage.ru_maxrss * 1024
