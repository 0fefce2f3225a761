"""What part of a run goes into saying how it goes? Seconds inside calls that print, write, forecast and track.

    python scripts/bench_logging.py                    steps of ~30 ms, a line every tenth, untracked and W&B (~1 min)
    python scripts/bench_logging.py --steps 100        shorter

The trainer counts them in every run (`logging_seconds` in actual.json); waiting for the device is not in it, starting
and closing the tracker are start-up and shutdown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from conf.choices import TrackingMode
from trainers.wandb_server import choose_mode

WANTED_FRACTION = 0.01
WANTED_SECONDS = 3.0  # until a run with a key and no way to the server goes on offline
NOWHERE = "http://192.0.2.1"  # RFC 5737: an address that nobody has
TRACKERS = {"none": ("tracking=none",), "W&B offline": ("tracking=wandb", "tracking.mode=offline")}
OVERRIDES = (
    "hw=cpu", "model.n_layer=2", "trainer.sequence_length=128", "trainer.micro_batch_size=8",
    "trainer.tokens_per_step=1024", "trainer.log_interval=10", "trainer.precision=fp32",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 when more than wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("overrides", nargs="*", help="as for launch.py")
    options = parser.parse_args(arguments)
    worst = 0.0
    print("tracking       step      logging   of steps   of the run   a line")
    for name, tracking in TRACKERS.items():
        actual = run(*OVERRIDES, f"trainer.n_steps={options.steps}", *tracking, *options.overrides)
        logging, n_lines = actual["logging_seconds"], options.steps / 10
        steps = actual["wall_terms_seconds"]["steps"]
        worst = max(worst, logging / steps)
        print(f"{name:<12} {1e3 * actual['step_seconds']:4.1f} ms {1e3 * logging:9.1f} ms {logging / steps:9.2%} "
              f"{logging / actual['wall_seconds']:11.2%} {1e3 * logging / n_lines:9.2f} ms")  # fmt: skip
    print(f"wanted: below {WANTED_FRACTION:.0%} of the steps")
    mode, seconds = without_a_route()
    print(f"a key but no route: {mode} after {seconds:.1f} s; wanted: at most {WANTED_SECONDS:g} s")
    return 0 if worst < WANTED_FRACTION and seconds <= WANTED_SECONDS else 1


def without_a_route() -> tuple[str, float]:
    """What is decided, and when."""
    os.environ |= {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": NOWHERE}
    choose_mode(TrackingMode.offline)  # the import of W&B is start-up
    begin = time.perf_counter()
    mode, _ = choose_mode(TrackingMode.auto)
    return mode, time.perf_counter() - begin


def run(*overrides: str) -> dict[str, Any]:
    """What actual.json says of a run in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-logging-") as folder:
        command = [sys.executable, str(ROOT / "launch.py"), f"runs_dir={folder}", *overrides]
        environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        subprocess.run(command, check=True, capture_output=True, env=environment)
        (path,) = Path(folder).glob("*/actual.json")
        actual: dict[str, Any] = json.loads(path.read_text())["actual"]
        return actual


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
