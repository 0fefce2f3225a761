"""How a number with its band is said in one unit, and how long lines are folded to 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from preflight.band import Band
from preflight.cost import CostEstimate
from preflight.hw_plan import CardKind, HwPlan
from preflight.money import USD, format_money
from preflight.plan import Money
from preflight.units import (
    GIB,
    MIB,
    SECONDS_PER_DAY,
    SECONDS_PER_HOUR,
    SECONDS_PER_MINUTE,
    SECONDS_PER_YEAR,
    format_bytes,
    format_count,
    format_kwh,
    format_seconds,
)

WIDTH = 80
LABEL = 9  # columns before the text of a line
UNKNOWN = "unknown"
NARROW_FRACTION = 0.02  # a band narrower than this is shown as one number


def folded(label: str, text: str) -> str:
    """`label    text`, continued under the text."""
    first = label.ljust(LABEL) if len(label) < LABEL else label + " "
    lines = textwrap.wrap(
        first + text, WIDTH, subsequent_indent=" " * LABEL, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines)


def seconds_with_band(band: Band | None) -> str:
    """`14.6 h (12.1-19.0)`."""
    return _with_band(band, format_seconds, _seconds_unit)


def bytes_with_band(band: Band | None) -> str:
    """`15.6 GiB (14.4-17.1)`."""
    return _with_band(band, format_bytes, lambda value: float(GIB if value >= GIB else MIB))


def usd_with_band(band: Band | None, money: Money = USD) -> str:
    """`$19.90 ($16.50-26.00)`, or in the currency that was asked for."""
    if band is None or _is_narrow(band):
        return UNKNOWN if band is None else format_money(band.mid, money)
    return f"{format_money(band.mid, money)} ({format_money(band.low, money)}-{format_money(band.high, money)[1:]})"


def kwh_with_band(band: Band | None) -> str:
    """`32 kWh (26-41)`."""
    return _with_band(band, _kwh, lambda value: 1.0 if value >= 1 else 1e-3)


def _kwh(value: float) -> str:
    return f"{value:,.0f} kWh" if value >= 100 else format_kwh(value)


def _with_band(band: Band | None, say: Callable[[float], str], unit_of: Callable[[float], float]) -> str:
    if band is None:
        return UNKNOWN
    if _is_narrow(band):
        return say(band.mid)
    unit, text = unit_of(band.mid), say(band.mid)
    n_decimals = len(text.split(" ")[0].partition(".")[2])  # as many as the middle is shown with
    return f"{text} ({band.low / unit:,.{n_decimals}f}-{band.high / unit:,.{n_decimals}f})"


def _is_narrow(band: Band) -> bool:
    return band.high - band.low <= NARROW_FRACTION * abs(band.mid)


def _seconds_unit(seconds: float) -> float:
    """The unit that `format_seconds` takes for this number."""
    if seconds >= 2 * SECONDS_PER_YEAR:
        return SECONDS_PER_YEAR
    if seconds >= 2 * SECONDS_PER_DAY:
        return SECONDS_PER_DAY
    if seconds >= 1.5 * SECONDS_PER_HOUR:
        return SECONDS_PER_HOUR
    if seconds >= 2 * SECONDS_PER_MINUTE:
        return SECONDS_PER_MINUTE
    return 1.0 if seconds >= 1 else 1e-3


def machine_words(hw: HwPlan) -> str:
    """`4 x RTX 4090 24 GB`, `2 nodes x 8 x H100 SXM 80 GB`, `this CPU (2 processes)`."""
    if hw.card.kind in (CardKind.cpu, CardKind.mps):
        return hw.card.label + (f", {hw.world_size} processes" if hw.world_size > 1 else "")
    nodes = f"{hw.n_nodes} nodes x " if hw.n_nodes > 1 else ""
    return f"{nodes}{hw.n_gpus_per_node} x {hw.card.label}"


def rank_word(hw: HwPlan, n: int = 1) -> str:
    """What one rank runs on."""
    word = "GPU" if hw.card.kind in (CardKind.cuda, CardKind.rocm) else "process"
    return word if n == 1 else {"GPU": "GPUs", "process": "processes"}[word]


def significant(value: float) -> str:
    """`565,000`: three digits are all that an estimate has."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def tuned_words(n_tuned: int, n_params: int) -> str:
    """`4.2M weights beside 6.7B frozen ones`, or all of them."""
    if n_tuned == n_params:
        return f"all {format_count(n_params)} weights"
    return f"{format_count(n_tuned)} weights beside {format_count(n_params)} frozen ones"


def co2_words(cost: CostEstimate) -> str:
    """`, 15.2 kg CO2`, or nothing when unknown."""
    if cost.co2_kg is None:
        return ""
    kilograms = cost.co2_kg.mid
    return (
        f", {kilograms:,.{0 if kilograms >= 100 else 1}f} kg CO2"
        if kilograms >= 1
        else f", {kilograms * 1e3:.3g} g CO2"
    )
