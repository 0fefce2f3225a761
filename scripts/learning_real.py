"""Ten real runs of ten different plans on this machine, the bill made before each: how good have the bills become?

Used by `scripts/bench_learning.py --real`. Every run is a `python launch.py` of its own, tracked offline as by default,
in a ledger that starts empty; the bill is the one that the launcher showed before it started.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preflight.record import read_ledger
from preflight.units import MIB

ROOT = Path(__file__).resolve().parents[1]
N_LAST = 5
WALL_LIMIT, MEMORY_LIMIT = 0.08, 0.05  # median error of the last five bills
MIN_COVERED = 7  # of ten runs, by the 80 % band


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A plan: width, depth and batch all change from run to run."""

    n_layer: int
    n_embd: int
    micro_batch_size: int
    sequence_length: int
    n_passes: int
    n_steps: int

    def overrides(self) -> list[str]:
        """As typed."""
        return [
            f"model.n_layer={self.n_layer}",
            f"model.n_embd={self.n_embd}",
            f"trainer.micro_batch_size={self.micro_batch_size}",
            f"trainer.sequence_length={self.sequence_length}",
            f"trainer.tokens_per_step={self.micro_batch_size * self.sequence_length * self.n_passes}",
            f"trainer.n_steps={self.n_steps}",
        ]


def _shape(n_layer: int, n_embd: int, micro: int, sequence: int, n_passes: int, n_steps: int) -> Shape:
    return Shape(n_layer=n_layer, n_embd=n_embd, micro_batch_size=micro, sequence_length=sequence, n_passes=n_passes,
                 n_steps=n_steps)  # fmt: skip


SHAPES = (
    _shape(4, 128, 16, 128, 1, 250),
    _shape(2, 128, 16, 128, 2, 250),
    _shape(6, 192, 8, 128, 1, 150),
    _shape(4, 256, 8, 256, 1, 60),
    _shape(3, 64, 32, 256, 1, 200),
    _shape(8, 128, 8, 256, 1, 150),
    _shape(4, 192, 16, 128, 1, 180),
    _shape(6, 256, 4, 256, 2, 60),
    _shape(2, 256, 16, 128, 1, 180),
    _shape(5, 160, 12, 192, 1, 150),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One number of a bill, its band, and what was measured."""

    estimated: float
    low: float
    high: float
    actual: float

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return abs(self.estimated / self.actual - 1)

    @property
    def is_covered(self) -> bool:
        """By the 80 % band."""
        return self.low <= self.actual <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """The bill of one run beside what it took."""

    shape: Shape
    wall: Pair
    peak: Pair
    terms_seconds: dict[str, tuple[float, float]]  # of the wall time: estimated, actual


def real_runs(n_runs: int, extra: Sequence[str], keep: Path | None) -> list[RealRun]:
    """One after the other; a line each as soon as it is known."""
    with tempfile.TemporaryDirectory(prefix="bench_learning_") as temporary:
        folder = (keep or Path(temporary)).resolve()
        data = folder / "data"
        prepare = [sys.executable, str(ROOT / "scripts" / "prepare_data.py"), "stdlib", "--dir", str(data)]
        subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
        places = [f"runs_dir={folder / 'runs'}", f"data.dir={data}"]
        found = []
        print(f"run {'layers x width, batch, steps':<34}{'wall time (s): bill (band) > took':<40}peak memory (MiB)")
        for i in range(n_runs):
            shape = SHAPES[i % len(SHAPES)]
            found.append(_run(shape, [*shape.overrides(), *places, *extra], folder / "runs"))
            print(f"{i + 1:>3} {line_of(found[-1])}", flush=True)
        return found


def _run(shape: Shape, overrides: Sequence[str], runs_dir: Path) -> RealRun:
    """The ledger's new line has both sides."""
    command = [sys.executable, str(ROOT / "launch.py"), *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    record = read_ledger(runs_dir).records[-1]
    terms = {
        name[len("estimate/wall_") : -len("_seconds")]: (value, record["actual"]["actual/" + name[len("estimate/") :]])
        for name, value in record["estimate"].items()
        if name.startswith("estimate/wall_") and name.endswith("_seconds") and name != "estimate/wall_seconds"
    }
    return RealRun(
        shape=shape, wall=_pair(record, "wall_seconds"), peak=_pair(record, "peak_device_bytes"), terms_seconds=terms
    )


def _pair(record: dict[str, Any], leaf: str) -> Pair:
    estimate, name = record["estimate"], f"estimate/{leaf}"
    return Pair(
        estimated=estimate[name],
        low=estimate[f"{name}_low"],
        high=estimate[f"{name}_high"],
        actual=record["actual"][f"actual/{leaf}"],
    )


def line_of(run: RealRun) -> str:
    """What a person reads of one run."""
    s = run.shape
    plan = f"{s.n_layer} x {s.n_embd}, {s.micro_batch_size} x {s.sequence_length} x {s.n_passes}, {s.n_steps}"
    return f"{plan:<34}{_cell(run.wall, 1.0, 1):<40}{_cell(run.peak, MIB, 0)}"


def _cell(pair: Pair, unit: float, n_digits: int) -> str:
    estimated, low, high, actual = (
        f"{value / unit:.{n_digits}f}" for value in (pair.estimated, pair.low, pair.high, pair.actual)
    )
    mark = f"{pair.estimated / pair.actual - 1:+.1%}" + ("" if pair.is_covered else " outside")
    return f"{estimated} ({low}-{high}) > {actual}, {mark}"


def verdict(runs: Sequence[RealRun]) -> list[tuple[str, bool]]:
    """Each promise with whether it was kept."""
    last = runs[-N_LAST:]
    wall = statistics.median(run.wall.error for run in last)
    peak = statistics.median(run.peak.error for run in last)
    covered = sum(run.wall.is_covered for run in runs)
    covered_peak = sum(run.peak.is_covered for run in runs)
    least = MIN_COVERED / len(SHAPES) * len(runs)
    return [
        (
            f"wall time: median error of the last {len(last)} bills {wall:.1%}, at most {WALL_LIMIT:.0%}",
            wall <= WALL_LIMIT,
        ),
        (
            f"peak memory: median error of the last {len(last)} bills {peak:.1%}, at most {MEMORY_LIMIT:.0%}",
            peak <= MEMORY_LIMIT,
        ),
        (f"wall time: the band held {covered} of {len(runs)}, at least {least:g}", covered >= least),
        (f"peak memory: the band held {covered_peak} of {len(runs)}, at least {least:g}", covered_peak >= least),
    ]


def term_lines(runs: Sequence[RealRun]) -> list[str]:
    """Estimated > actual seconds of every term of the wall time, run by run: where the errors come from."""
    names = list(runs[0].terms_seconds)
    lines = ["run " + "".join(f"{name:>20}" for name in names)]
    for i, run in enumerate(runs, start=1):
        cells = (f"{estimated:.2f} > {actual:.2f}" for estimated, actual in run.terms_seconds.values())
        lines.append(f"{i:>3} " + "".join(f"{cell:>20}" for cell in cells))
    return lines
