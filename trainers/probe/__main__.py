"""Measure this machine and print one JSON object; `launcher.calibrate` starts it and reads the last line.

python -m trainers.probe --kind cpu --ranks 2 --threads 2 --precisions bf16 fp32 --disk runs --seconds 20

Each measurement has a share of the time; one that fails leaves null and a note, the others go on.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from preflight.hw_plan import CardKind
from preflight.plan import Precision
from trainers.probe.device import DTYPES, copy_bytes_per_second, host_seconds, matmul_rates
from trainers.probe.disk import disk_bytes_per_second
from trainers.probe.links import all_reduce
from trainers.signals import stop_with_parent

SHARES = {"links": 0.2, "disk": 0.25, "matmul": 0.35, "copy": 0.1, "host": 0.1}  # of the time
DEVICE_TYPES = {CardKind.rocm: "cuda"}  # PyTorch's ROCm answers to that name


class Probe:
    """The measurements one after the other, with what went wrong."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.seconds: dict[str, float] = {}

    def measure(self, name: str, work: Callable[[], Any]) -> Any:
        """None when the machine cannot do it: no room, no permission, no link."""
        begin = time.perf_counter()
        try:
            return work()
        except (OSError, RuntimeError) as error:  # CUDA's and gloo's errors are RuntimeErrors
            self.notes.append(f"{name} was not measured: {error}")
            return None
        finally:
            self.seconds[name] = time.perf_counter() - begin


def measured(
    kind: CardKind, n_ranks: int, n_threads: int, precisions: list[Precision], disk: Path, seconds: float
) -> dict[str, Any]:
    """Links first: their ranks are forked, and must be before this process has touched a card or made threads."""
    probe, kind_name = Probe(), DEVICE_TYPES.get(kind, kind.value)
    share = {name: fraction * seconds for name, fraction in SHARES.items()}
    links = None
    if n_ranks > 1:
        links = probe.measure("all-reduce", lambda: all_reduce(kind_name, n_ranks, n_threads, share["links"]))
    io = probe.measure("disk", lambda: disk_bytes_per_second(disk, share["disk"]))
    if kind is CardKind.cpu:
        torch.set_num_threads(n_threads)
    device = torch.device(kind_name, 0) if kind_name == "cuda" else torch.device(kind_name)
    rates = probe.measure("matmul", lambda: matmul_rates(device, precisions, share["matmul"]))
    copy = probe.measure("copy", lambda: copy_bytes_per_second(device, share["copy"]))
    host = probe.measure("host", lambda: host_seconds(device, precisions[0], share["host"]))
    return {
        "torch": torch.__version__,
        "matmul": [rate._asdict() for rate in rates or ()],
        "bandwidth_bytes_per_second": copy,
        "pass_seconds": host and host[0],
        "layer_seconds": host and host[1],
        "disk_write_bytes_per_second": io and io[0],
        "disk_read_bytes_per_second": io and io[1],
        "bus_bytes_per_second": links and links[0],
        "bus_latency_seconds": links and links[1],
        "n_ranks": n_ranks,
        "seconds": probe.seconds,
        "notes": probe.notes,
    }


def _end(number: int, frame: object) -> NoReturn:
    """Files are removed on the way out."""
    raise SystemExit(128 + number)


def main() -> None:
    """One line of JSON."""
    stop_with_parent()
    signal.signal(signal.SIGTERM, _end)
    parser = argparse.ArgumentParser(prog="trainers.probe")
    parser.add_argument("--kind", type=CardKind, required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precisions", type=Precision, nargs="+", required=True)
    parser.add_argument("--disk", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    precisions = [precision for precision in given.precisions if precision in DTYPES]
    found = measured(given.kind, given.ranks, given.threads, precisions, given.disk, given.seconds)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
