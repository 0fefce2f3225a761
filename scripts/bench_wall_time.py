"""How far off is the bill's wall time on this machine, before and after one calibration? Runs six plans for real.

    python scripts/bench_wall_time.py                       six plans of a minute and more each, about 15 minutes
    python scripts/bench_wall_time.py --short               the same plans for about ten seconds each, about 5 minutes
    python scripts/bench_wall_time.py --once                one calibration, of the first plan, for all six
    python scripts/bench_wall_time.py --only 1 3 --json     some of them; one JSON document

Each plan: `action=calibrate` of it in a ledger of its own, its bill without and with what that found, then the run. The
wall time is this program's clock around the whole process, interpreter included. The machine should have nothing else
to do: processors that others use make every number here noise.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FULL_SECONDS, SHORT_SECONDS = 75.0, 12.0
MEDIAN_LIMIT, WORST_LIMIT = 0.10, 0.20
SMALL = ("model.n_layer=2", "model.n_embd=128", "model.n_head=4")
# Size, batch, length, precision, ranks: no two alike.
PLANS = {
    "tiny, bf16": ("trainer.precision=bf16",),
    "tiny, fp32, long": ("trainer.precision=fp32", "trainer.sequence_length=512", "trainer.micro_batch_size=8",
                         "trainer.tokens_per_step=4096"),
    "2 layers, fp32, wide batch": (*SMALL, "trainer.precision=fp32", "trainer.micro_batch_size=64",
                                   "trainer.tokens_per_step=8192"),
    "10M, bf16, accumulated": ("model=gpt2_10m", "data=stdlib",
                               "trainer.precision=bf16", "trainer.sequence_length=256", "trainer.micro_batch_size=2",
                               "trainer.tokens_per_step=2048"),
    "tiny, bf16, 2 ranks": ("hw=2xcpu", "trainer.precision=bf16", "trainer.micro_batch_size=8"),
    "2 layers, fp32, 2 ranks": ("hw=2xcpu", *SMALL, "trainer.precision=fp32", "trainer.micro_batch_size=16",
                                "trainer.sequence_length=256", "trainer.tokens_per_step=8192"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Seconds; errors are estimated / actual - 1."""

    name: str
    n_steps: int
    before_seconds: float
    after_seconds: float
    after_low_seconds: float
    after_high_seconds: float
    actual_seconds: float
    told_seconds: float  # what the run itself says it took
    estimated_terms: dict[str, float]
    actual_terms: dict[str, float]

    @property
    def error_before(self) -> float:
        """Of the formulas alone."""
        return self.before_seconds / self.actual_seconds - 1

    @property
    def error_after(self) -> float:
        """Of the calibrated bill."""
        return self.after_seconds / self.actual_seconds - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the calibrated bills are as near as wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--seconds", type=float, help="length of a run")
    parser.add_argument("--once", action="store_true", help="calibrate with the first plan only")
    parser.add_argument("--only", type=int, nargs="+", default=range(1, len(PLANS) + 1), help="plans by number")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    seconds = given.seconds or (SHORT_SECONDS if given.short else FULL_SECONDS)
    chosen = [list(PLANS)[number - 1] for number in given.only]
    results = []
    with tempfile.TemporaryDirectory(prefix="wall-time-") as folder:
        for number, name in enumerate(chosen):
            runs_dir = Path(folder) / ("shared" if given.once else f"plan-{number}")
            result = measure(name, runs_dir, seconds, calibrates=not given.once or number == 0)
            results.append(result)
            if not given.json:
                print(_line(result), flush=True)
    print(json.dumps(_document(results)) if given.json else _summary(results))
    return 0 if _is_good(results) else 1


def measure(name: str, runs_dir: Path, seconds: float, *, calibrates: bool) -> Result:
    """Calibrate, work out both bills, run."""
    overrides = [*PLANS[name], f"runs_dir={runs_dir}", "report=json"]
    if calibrates:
        launch(*overrides, "action=calibrate")
    n_steps = _n_steps(overrides, seconds)
    plan = [*overrides, f"trainer.n_steps={n_steps}"]
    before = launch(*plan, "dry_run=true", "calibration=off")["estimate"]
    after = launch(*plan, "dry_run=true")["estimate"]
    begin = time.perf_counter()
    done = launch(*plan)
    actual_seconds = time.perf_counter() - begin
    return Result(
        name=name,
        n_steps=n_steps,
        before_seconds=before["wall_seconds"]["mid"],
        after_seconds=after["wall_seconds"]["mid"],
        after_low_seconds=after["wall_seconds"]["low"],
        after_high_seconds=after["wall_seconds"]["high"],
        actual_seconds=actual_seconds,
        told_seconds=done["actual"]["wall_seconds"],
        estimated_terms=after["wall_terms_seconds"],
        actual_terms=done["actual"]["wall_terms_seconds"],
    )


def _n_steps(overrides: Sequence[str], seconds: float) -> int:
    """As many as make the wanted length, by the calibrated bill."""
    estimate = launch(*overrides, "dry_run=true")["estimate"]
    step_seconds: float = estimate["step_seconds"]["mid"]
    return max(20, math.ceil(seconds / step_seconds))


def launch(*overrides: str) -> dict[str, Any]:
    """The JSON document of one command line; RuntimeError when it failed."""
    command = [sys.executable, str(ROOT / "launch.py"), *overrides]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}{done.stdout}")
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def _line(result: Result) -> str:
    terms = ", ".join(
        f"{name} {result.estimated_terms.get(name, 0.0):.1f}/{seconds:.1f}"
        for name, seconds in result.actual_terms.items()
        if max(seconds, result.estimated_terms.get(name, 0.0)) > 0.05
    )
    inside = result.after_low_seconds <= result.actual_seconds <= result.after_high_seconds
    errors = f"before {result.error_before:+7.1%} | after {result.error_after:+7.1%}"
    return (
        f"{result.name:<28}{result.n_steps:>6} steps {result.actual_seconds:7.1f} s | {errors} "
        f"{'inside' if inside else 'outside'}\n    estimated/actual: {terms}; "
        f"the run itself counted {result.told_seconds:.1f} s"
    )


def _errors(results: Sequence[Result]) -> dict[str, float]:
    before = [abs(result.error_before) for result in results]
    after = [abs(result.error_after) for result in results]
    return {
        "before_median": statistics.median(before),
        "before_worst": max(before),
        "after_median": statistics.median(after),
        "after_worst": max(after),
    }


def _is_good(results: Sequence[Result]) -> bool:
    errors = _errors(results)
    return errors["after_median"] <= MEDIAN_LIMIT and errors["after_worst"] <= WORST_LIMIT


def _summary(results: Sequence[Result]) -> str:
    errors = _errors(results)
    return (
        f"wall time of {len(results)} plans: uncalibrated median {errors['before_median']:.1%}, worst "
        f"{errors['before_worst']:.1%}; calibrated median {errors['after_median']:.1%} (wanted {MEDIAN_LIMIT:.0%}), "
        f"worst {errors['after_worst']:.1%} (wanted {WORST_LIMIT:.0%})"
    )


def _document(results: Sequence[Result]) -> dict[str, Any]:
    rows = [
        {
            "name": result.name,
            "n_steps": result.n_steps,
            "before_seconds": result.before_seconds,
            "after_seconds": result.after_seconds,
            "actual_seconds": result.actual_seconds,
            "told_seconds": result.told_seconds,
            "error_before": result.error_before,
            "error_after": result.error_after,
            "estimated_terms": result.estimated_terms,
            "actual_terms": result.actual_terms,
        }
        for result in results
    ]
    return {"rows": rows, **_errors(results)}


if __name__ == "__main__":
    sys.exit(main())
