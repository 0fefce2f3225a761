"""A ledger told again: each run's bill as it would be made today from the runs before it. How good are they, in order?

Used by `scripts/bench_learning.py --ledger`. Unlike the bills in the ledger, which older programs made, these are all
of today's formulas and today's calibration, so that a change of either can be judged on one's own history.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from preflight.band import Band
from preflight.calibration.calibrate import calibrate
from preflight.estimate import Estimate, estimate
from preflight.plan import NO_CALIBRATION, RunPlan
from preflight.planfile import from_jsonable
from scripts.report_rows import Record, is_partial

N_LAST = 5
LEAVES: dict[str, Callable[[Estimate], Band | None]] = {
    "wall_seconds": lambda billed: billed.wall.seconds,
    "step_seconds": lambda billed: billed.step.seconds,
    "peak_device_bytes": lambda billed: billed.memory.device,
}
Row = tuple[str, float, float, float, float]  # leaf, low, mid, high, actual


def replayed(records: Sequence[dict[str, Any]]) -> Iterator[tuple[Record, int, list[Row]]]:
    """(record, runs that its calibration used, rows); lines without a whole run are learnt from but not billed."""
    for i, record in enumerate(records):
        if not record["actual"] or is_partial(record):
            continue
        try:
            plan = replace(from_jsonable(RunPlan, record["plan"]), calibration=NO_CALIBRATION)
            calibration = calibrate(plan, records[:i], None)
            billed = estimate(replace(plan, calibration=calibration))
        except (ArithmeticError, KeyError, TypeError, ValueError):  # a plan that today's sums cannot take
            continue
        yield record, calibration.n_runs, list(_rows(record, billed))


def _rows(record: Record, billed: Estimate) -> Iterator[Row]:
    for leaf, of in LEAVES.items():
        band, actual = of(billed), record["actual"].get(f"actual/{leaf}")
        if band is not None and isinstance(actual, int | float) and actual > 0:
            yield leaf, band.low, band.mid, band.high, float(actual)


def lines(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line a run, then a summary of each number."""
    told: dict[str, list[tuple[float, bool]]] = {leaf: [] for leaf in LEAVES}
    for record, n_runs, rows in replayed(records):
        cells = []
        for leaf, low, mid, high, actual in rows:
            told[leaf].append((abs(mid / actual - 1), low <= actual <= high))
            cells.append(f"{leaf} {mid / actual - 1:+.1%}" + ("" if low <= actual <= high else " outside"))
        yield f"{record['run_id']:<36} after {n_runs:>2}: " + ", ".join(cells)
    for leaf, found in told.items():
        if found:
            errors = [error for error, _ in found]
            yield (
                f"{leaf:<18} median error {statistics.median(errors):.1%} of {len(errors)}, "
                f"{statistics.median(errors[-N_LAST:]):.1%} of the last {len(errors[-N_LAST:])}; "
                f"the band held {sum(held for _, held in found)} of {len(found)}"
            )
