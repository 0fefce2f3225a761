"""After the run: estimated | actual | ratio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from preflight.actual import Actual, is_whole
from preflight.band import Band, exact
from preflight.estimate import Estimate
from preflight.money import USD, format_money
from preflight.plan import Money
from preflight.report.words import UNKNOWN, bytes_with_band, kwh_with_band, seconds_with_band, usd_with_band
from preflight.units import format_bytes, format_kwh, format_seconds

SMALL_FRACTION = 0.01  # terms of the wall time below this part of it are left out
COLUMNS = (20, 26, 14, 7)

Say = Callable[[float], str]
SayBand = Callable[[Band | None], str]


def actual_text(estimate: Estimate, actual: Actual, n_steps: int, money: Money = USD) -> str:
    """One row a number; `outside` marks what the band did not hold. Like is compared with like: see `_remark`."""
    remark = _remark(actual, n_steps)
    has_steps, compared = actual.n_steps_done > actual.first_step, remark is None
    rows = [_row("", "estimated", "actual", "ratio")]
    rows += _memory_rows(estimate, actual, compared=has_steps)
    step, wall, cost = estimate.step.seconds, estimate.wall, estimate.cost
    rows.append(_row_of("step time", step, actual.step_seconds, seconds_with_band, format_seconds, has_steps))
    rows.append(_row_of("wall time", wall.seconds, actual.wall_seconds, seconds_with_band, format_seconds, compared))
    rows += _wall_rows(wall.terms_seconds, actual.wall_terms_seconds, actual.wall_seconds, compared=compared)
    spoken = partial(usd_with_band, money=money), partial(format_money, money=money)
    rows.append(_row_of("cost", cost.cost_usd, actual.cost_usd, *spoken, compared))
    rows.append(_row_of("energy", cost.energy_kwh, actual.energy_kwh, kwh_with_band, format_kwh, compared))
    return "\n".join([*rows, *([] if remark is None else [remark])]) + "\n"


def _remark(actual: Actual, n_steps: int) -> str | None:
    """Why totals are not compared: the estimate is of a whole run, and this was a part of one. None: it was whole."""
    if is_whole(actual.first_step, actual.n_steps_done, n_steps):
        return None
    if actual.wall_seconds is None:
        return "the run ended before it could measure: nothing is compared"
    if actual.n_steps_done <= actual.first_step:
        return "the run ended before its first step: nothing is compared"
    steps = f"steps {actual.first_step + 1:,}-{actual.n_steps_done:,} of {n_steps:,}"
    return f"totals are of {steps}, the estimate is of the whole run: not compared"


def _memory_rows(estimate: Estimate, actual: Actual, *, compared: bool) -> list[str]:
    memory = estimate.memory
    device, allocated = actual.peak_device_bytes, actual.peak_allocated_bytes
    rows = [_row_of("peak memory", memory.device, device, bytes_with_band, format_bytes, compared)]
    if allocated is not None and allocated != device:
        rows.append(_row_of("  allocated", memory.allocated, allocated, bytes_with_band, format_bytes, compared))
    return rows


def _wall_rows(
    terms: Mapping[str, float], actual: Mapping[str, float], total: float | None, *, compared: bool
) -> list[str]:
    """The terms that matter, in the estimate's order."""
    floor = SMALL_FRACTION * (total if total is not None else sum(actual.values()))
    names = [*terms, *(name for name in actual if name not in terms)]
    rows = []
    for name in names:
        estimated, measured = terms.get(name), actual.get(name)
        if max(estimated or 0.0, measured or 0.0) > floor:
            band = None if estimated is None else exact(estimated, "formula")
            label = f"  {name.replace('_', ' ')}"
            rows.append(_row_of(label, band, measured, seconds_with_band, format_seconds, compared))
    return rows


def _row_of(
    label: str, estimated: Band | None, actual: float | None, say_band: SayBand, say: Say, compared: bool
) -> str:
    ratio = "-"
    if compared and estimated is not None and actual is not None and estimated.mid > 0:
        ratio = f"{actual / estimated.mid:.2f}"
        is_band = estimated.high > estimated.low
        ratio += "  outside" if is_band and not estimated.low <= actual <= estimated.high else ""
    return _row(label, say_band(estimated), UNKNOWN if actual is None else say(actual), ratio)


def _row(*cells: str) -> str:
    name, estimated, actual, ratio = cells
    widths = COLUMNS
    return f"{name:<{widths[0]}}{estimated:<{widths[1]}}{actual:<{widths[2]}}{ratio}".rstrip()
