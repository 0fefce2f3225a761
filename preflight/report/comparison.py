"""After the run: estimated | actual | ratio."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from preflight.actual import Actual
from preflight.band import Band, exact
from preflight.estimate import Estimate
from preflight.report.words import UNKNOWN, bytes_with_band, kwh_with_band, seconds_with_band, usd_with_band
from preflight.units import format_bytes, format_kwh, format_seconds, format_usd

SMALL_FRACTION = 0.01  # terms of the wall time below this part of it are left out
COLUMNS = (20, 26, 14, 7)

Say = Callable[[float], str]
SayBand = Callable[[Band | None], str]


def actual_text(estimate: Estimate, actual: Actual) -> str:
    """One row a number; `outside` marks what the band did not hold."""
    rows = [_row("", "estimated", "actual", "ratio")]
    rows += _memory_rows(estimate, actual)
    step, wall, cost = estimate.step.seconds, estimate.wall, estimate.cost
    rows.append(_compared("step time", step, actual.step_seconds, seconds_with_band, format_seconds))
    rows.append(_compared("wall time", wall.seconds, actual.wall_seconds, seconds_with_band, format_seconds))
    rows += _wall_rows(wall.terms_seconds, actual.wall_terms_seconds, actual.wall_seconds)
    rows.append(_compared("cost", cost.cost_usd, actual.cost_usd, usd_with_band, format_usd))
    rows.append(_compared("energy", cost.energy_kwh, actual.energy_kwh, kwh_with_band, format_kwh))
    return "\n".join(rows) + "\n"


def _memory_rows(estimate: Estimate, actual: Actual) -> list[str]:
    memory = estimate.memory
    rows = [_compared("peak memory", memory.device, actual.peak_device_bytes, bytes_with_band, format_bytes)]
    if actual.peak_allocated_bytes is not None and actual.peak_allocated_bytes != actual.peak_device_bytes:
        rows.append(
            _compared("  allocated", memory.allocated, actual.peak_allocated_bytes, bytes_with_band, format_bytes)
        )
    return rows


def _wall_rows(terms: Mapping[str, float], actual: Mapping[str, float], total: float | None) -> list[str]:
    """The terms that matter, in the estimate's order."""
    floor = SMALL_FRACTION * (total if total is not None else sum(actual.values()))
    names = [*terms, *(name for name in actual if name not in terms)]
    rows = []
    for name in names:
        estimated, measured = terms.get(name), actual.get(name)
        if max(estimated or 0.0, measured or 0.0) > floor:
            band = None if estimated is None else exact(estimated, "formula")
            rows.append(_compared(f"  {name.replace('_', ' ')}", band, measured, seconds_with_band, format_seconds))
    return rows


def _compared(label: str, estimated: Band | None, actual: float | None, say_band: SayBand, say: Say) -> str:
    ratio = "-"
    if estimated is not None and actual is not None and estimated.mid > 0:
        ratio = f"{actual / estimated.mid:.2f}"
        is_band = estimated.high > estimated.low
        ratio += "  outside" if is_band and not estimated.low <= actual <= estimated.high else ""
    return _row(label, say_band(estimated), UNKNOWN if actual is None else say(actual), ratio)


def _row(*cells: str) -> str:
    name, estimated, actual, ratio = cells
    widths = COLUMNS
    return f"{name:<{widths[0]}}{estimated:<{widths[1]}}{actual:<{widths[2]}}{ratio}".rstrip()
