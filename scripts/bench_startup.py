"""How long until the bill stands there, and until the first training step, beside the barest programs that could do it?

    python scripts/bench_startup.py                    both sections
    python scripts/bench_startup.py --rounds 20 bill   only the first

bill   `python launch.py model=gpt2_124m hw=4x4090 dry_run=true` against a minimal Hydra app that composes three groups.
step   `python launch.py` until its first training step, against `torchrun` on a bare script with the same imports, the
       same wandb.init (offline), the same model and one step. The data is prepared beforehand for both.

Programs run in turn, cold processes with warm files; the medians count. Nothing is left on disk.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BILL_LIMIT = 1.35
STEP_LIMIT = 1.25

HYDRA_APP = """\
import hydra
from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    print(config.model.n_layer, config.hw.n_gpus, config.trainer.n_steps)


main()
"""
HYDRA_FILES = {
    "config.yaml": "defaults:\n  - model: tiny\n  - hw: cpu\n  - trainer: short\n  - _self_\ndry_run: false\n",
    "model/tiny.yaml": "n_layer: 4\nn_head: 4\nn_embd: 128\n",
    "model/gpt2_124m.yaml": "n_layer: 12\nn_head: 12\nn_embd: 768\n",
    "hw/cpu.yaml": "n_gpus: 1\n",
    "hw/4x4090.yaml": "n_gpus: 4\n",
    "trainer/short.yaml": "n_steps: 10\nlearning_rate: 1e-3\n",
}
BARE_SCRIPT = """\
import sys
import time
from pathlib import Path

import numpy as np
import torch
import wandb

torch.manual_seed(1337)
wandb.init(project="preflight", mode="offline", dir=sys.argv[1], settings=wandb.Settings(console="off", silent=True))
V, C, T, B, n_layer = 256, 128, 128, 32, 4
layer = torch.nn.TransformerEncoderLayer(C, 4, 4 * C, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
blocks = torch.nn.TransformerEncoder(layer, n_layer, enable_nested_tensor=False)
embed, head = torch.nn.Embedding(V, C), torch.nn.Linear(C, V, bias=False)
parameters = [*blocks.parameters(), *embed.parameters(), *head.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
tokens = np.memmap(Path(sys.argv[2]) / "train.bin", dtype=np.uint16, mode="r")
batch = torch.from_numpy(np.stack([tokens[i * T : i * T + T + 1] for i in range(B)]).astype(np.int64))
mask = torch.nn.Transformer.generate_square_subsequent_mask(T)
with torch.autocast("cpu", dtype=torch.bfloat16):
    logits = head(blocks(embed(batch[:, :-1]), mask=mask, is_causal=True))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
loss.backward()
torch.nn.utils.clip_grad_norm_(parameters, 1.0)
optimizer.step()
print("step 1/1", loss.item(), flush=True)
wandb.finish()
"""


def main() -> int:
    """0 when every ratio is within its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=["bill", "step"], help="bill, step")
    parser.add_argument("--rounds", type=int, default=10, help="of the bill; the step takes a third of them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench_startup_") as folder:
        passed = [
            *([bench_bill(Path(folder), options.rounds)] if "bill" in options.sections else []),
            *([bench_step(Path(folder), max(3, options.rounds // 3))] if "step" in options.sections else []),
        ]
    return 0 if all(passed) else 1


def bench_bill(folder: Path, n_rounds: int) -> bool:
    """Both programs run to their end."""
    (folder / "app.py").write_text(HYDRA_APP)
    for name, text in HYDRA_FILES.items():
        (folder / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "conf" / name).write_text(text)
    overrides = ["model=gpt2_124m", "hw=4x4090", "dry_run=true"]
    minimal = [sys.executable, "app.py", *overrides]
    ours = [sys.executable, str(ROOT / "launch.py"), *overrides, f"runs_dir={folder / 'runs'}"]
    times = in_turn(n_rounds, lambda: seconds_to_end(minimal, folder), lambda: seconds_to_end(ours, folder))
    return show("the bill", ("minimal Hydra app", "launch.py dry_run=true"), times, BILL_LIMIT)


def bench_step(folder: Path, n_rounds: int) -> bool:
    """Both programs are stopped when they have told of their first step."""
    (folder / "bare.py").write_text(BARE_SCRIPT)
    prepare = [sys.executable, str(ROOT / "scripts" / "prepare_data.py"), "stdlib", "--dir", str(folder / "data")]
    subprocess.run(prepare, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1"]
    bare = [*torchrun, "bare.py", str(folder), str(folder / "data" / "stdlib")]
    overrides = ["trainer.n_steps=2", "trainer.log_interval=1", "tracking.mode=offline", "calibration=off"]
    folders = [f"runs_dir={folder / 'runs'}", f"data.dir={folder / 'data'}"]
    ours = [sys.executable, str(ROOT / "launch.py"), *overrides, *folders]
    times = in_turn(n_rounds, lambda: seconds_to_step(bare, folder), lambda: seconds_to_step(ours, folder))
    return show("the first training step", ("torchrun on a bare script", "launch.py"), times, STEP_LIMIT)


def in_turn(n_rounds: int, *programs: Callable[[], float]) -> tuple[list[float], ...]:
    """Seconds of each program and round; the first round warms the file cache and does not count."""
    times: tuple[list[float], ...] = tuple([] for _ in programs)
    for i in range(n_rounds + 1):
        for program, seconds in zip(programs, times, strict=True):
            took = program()
            if i:
                seconds.append(took)
    return times


def seconds_to_end(command: Sequence[str], folder: Path) -> float:
    """A whole process, from nothing."""
    started = time.perf_counter()
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def seconds_to_step(command: Sequence[str], folder: Path) -> float:
    """From nothing to the line that tells of the first step; the process then ends by itself."""
    started = time.perf_counter()
    took = None
    environment = os.environ | {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}  # torchrun would take one thread
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        for line in process.stdout or ():
            if took is None and line.startswith("step 1/"):
                took = time.perf_counter() - started
    if took is None:
        raise RuntimeError(f"no training step was told of by {' '.join(command)} (exit code {process.returncode})")
    return took


def show(title: str, names: tuple[str, str], times: tuple[list[float], ...], limit: float) -> bool:
    """Medians with their quartiles, and the ratio."""
    medians = [statistics.median(seconds) for seconds in times]
    ratio = medians[1] / medians[0]
    verdict = "within" if ratio <= limit else "ABOVE"
    print(f"{title}: {ratio:.2f}x, {verdict} {limit}x ({len(times[0])} rounds in turn)")
    for name, seconds, median in zip(names, times, medians, strict=True):
        spread = f"{min(seconds) * 1e3:,.0f}-{max(seconds) * 1e3:,.0f}"
        print(f"  {name:28} {median * 1e3:8,.0f} ms ({spread})")
    return ratio <= limit


if __name__ == "__main__":
    sys.exit(main())
