"""What `action=calibrate` says: what it may take, what it found beside what was assumed, the bill before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conf.schema import CalibrateConfig
from preflight.actual import Actual, flat_actual
from preflight.band import Band
from preflight.bill import Bill
from preflight.duration import DISK_BYTES_PER_SECOND
from preflight.errors import ExitCode
from preflight.estimate import Estimate
from preflight.hw_plan import HwPlan
from preflight.money import format_money
from preflight.plan import Precision
from preflight.planfile import SCHEMA_VERSION
from preflight.priors import link
from preflight.report.words import UNKNOWN, folded, machine_words, seconds_with_band, usd_with_band
from preflight.resolve.ranges import RANGES
from preflight.step_time.card_rates import listed_matmul_flops_per_second
from preflight.step_time.constants import CONSTANTS
from preflight.units import format_seconds

NOT_MEASURED = "not measured"
LONGER_SECONDS = 60.0  # enough on a machine that is not too busy
COLUMNS = "{name:<28}{found:>16}   {assumed}"


def before_lines(bill: Bill, max_seconds: float, max_steps: int, at_most_usd: float | None) -> list[str]:
    """What it may take; the price before anything is spent."""
    money = f"{UNKNOWN} cost" if at_most_usd is None else f"at most {format_money(at_most_usd, bill.plan.budget.money)}"
    bounds = f"at most {format_seconds(max_seconds)} and {max_steps} steps, {money}"
    what = f"{machine_words(bill.plan.hw)} with {bill.plan.model.name}"
    return [folded("measure", f"{what}: {bounds} ({bill.estimate.cost.rates.basis})")]


def probe_lines(hw: HwPlan, found: Mapping[str, Any], max_seconds: float) -> list[str]:
    """Found beside assumed, and which limit may do where something was not found."""
    rows = [COLUMNS.format(name="", found="measured", assumed="assumed so far").rstrip()]
    best: dict[str, float] = {}
    for row in found["matmul"]:
        best[row["precision"]] = max(row["flops_per_second"], best.get(row["precision"], 0.0))
    for name, rate in best.items():
        rows.append(_row(f"matmul {name}", rate / 1e12, "TFLOP/s", _assumed_matmul(hw, Precision(name))))
    constants = CONSTANTS[hw.card.kind]
    listed = hw.card.bandwidth_bytes_per_second
    assumed_bytes = listed and constants.bandwidth_fraction * listed / 1e9
    rows.append(_row("memory, copied", _scaled(found["bandwidth_bytes_per_second"], 1e-9), "GB/s", assumed_bytes))
    rows.append(_row("host, a pass", _scaled(found["pass_seconds"], 1e3), "ms", constants.pass_seconds * 1e3))
    rows.append(_row("host, a layer", _scaled(found["layer_seconds"], 1e3), "ms", constants.eager_layer_seconds * 1e3))
    disk = DISK_BYTES_PER_SECOND / 1e6
    rows.append(_row("disk, written", _scaled(found["disk_write_bytes_per_second"], 1e-6), "MB/s", disk))
    rows.append(_row("disk, read", _scaled(found["disk_read_bytes_per_second"], 1e-6), "MB/s", disk))
    if found["n_ranks"] > 1:
        gloo = link("gloo").bus_bandwidth / 1e9 if hw.card.name == "cpu" else None
        bus = _scaled(found["bus_bytes_per_second"], 1e-9)
        rows.append(_row(f"all-reduce, {found['n_ranks']} ranks", bus, "GB/s", gloo))
    if any(NOT_MEASURED in row for row in rows):
        longer = f"calibrate.max_seconds={longer_seconds(max_seconds):g} may do"
        rows.append(folded("", f"{NOT_MEASURED} in the time it had: {longer}"))
    return rows


def longer_seconds(max_seconds: float) -> float:
    """A limit that may do where this one did not."""
    return min(max(LONGER_SECONDS, 2 * max_seconds), RANGES["calibrate.max_seconds"].high)


def _assumed_matmul(hw: HwPlan, precision: Precision) -> float | None:
    listed = listed_matmul_flops_per_second(hw.card, precision)
    return None if listed is None else listed / 1e12


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _row(name: str, found: float | None, unit: str, assumed: float | None) -> str:
    shown = NOT_MEASURED if found is None else f"{_digits(found)} {unit}"
    return COLUMNS.format(name=name, found=shown, assumed=UNKNOWN if assumed is None else f"{_digits(assumed)} {unit}")


def _digits(rate: float) -> str:
    """Three that matter; never 1.12e+03."""
    return f"{rate:,.0f}" if abs(rate) >= 1000 else f"{rate:.3g}"


def after_lines(before: Bill, after: Bill, actual: Actual | None, why_no_steps: str) -> list[str]:
    """The asked plan's bill, before and after."""
    lines = []
    if why_no_steps:
        lines.append(folded("steps", f"no real step was measured: {why_no_steps}"))
    elif actual is not None:
        step = UNKNOWN if actual.step_seconds is None else format_seconds(actual.step_seconds)
        lines.append(folded("steps", f"{actual.n_steps_done} real steps of {step}, start-up and saving timed beside"))
    for label, bill in (("before", before), ("after", after)):
        times, wall = bill.estimate.step.seconds, bill.estimate.wall.seconds
        money = usd_with_band(bill.estimate.cost.cost_usd, bill.plan.budget.money)
        text = f"{seconds_with_band(wall)}, {seconds_with_band(times)} a step, {money}"
        lines.append(folded(label, text))
    return lines


def calibration_document(
    before: Bill,
    found: Mapping[str, Any] | None,
    actual: Actual | None,
    after: Bill | None,
    why_no_steps: str,
    limits: CalibrateConfig,
    at_most_usd: float | None,
    exit_code: ExitCode | int,
) -> dict[str, Any]:
    """`report=json`: names are added, never renamed; null is unknown or not done."""
    return {
        "schema_version": SCHEMA_VERSION,
        "action": "calibrate",
        "machine": machine_words(before.plan.hw),
        "limits": {"seconds": limits.max_seconds, "n_steps": limits.max_steps, "cost_usd": at_most_usd},
        "found": None if found is None else dict(found),
        "actual": None if actual is None else flat_actual(actual),
        "why_no_steps": why_no_steps or None,
        "before": _numbers(before.estimate),
        "after": None if after is None else _numbers(after.estimate),
        "exit_code": int(exit_code),
    }


def _numbers(estimate: Estimate) -> dict[str, Any]:
    bands = {
        "wall_seconds": estimate.wall.seconds,
        "step_seconds": estimate.step.seconds,
        "cost_usd": estimate.cost.cost_usd,
        "peak_device_bytes": estimate.memory.device,
    }
    return {name: _band(band) for name, band in bands.items()} | {
        "wall_terms_seconds": dict(estimate.wall.terms_seconds)
    }


def _band(band: Band | None) -> dict[str, Any] | None:
    return None if band is None else {"low": band.low, "mid": band.mid, "high": band.high, "source": band.source}
