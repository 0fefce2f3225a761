"""How a comparison is shown: a table of 100 columns and notes, one JSON document, CSV.

The table has the best offer of each card, the Pareto front (hours against money) and your own machine; report=full has
every row.
"""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Sequence
from datetime import date
from typing import Any

from conf.choices import CompareBy
from preflight.band import Band
from preflight.catalog import is_current
from preflight.checks.facts import STALE_DAYS
from preflight.compare import Comparison, Row
from preflight.errors import ExitCode
from preflight.hw_plan import Offer
from preflight.money import USD, format_money
from preflight.planfile import SCHEMA_VERSION
from preflight.report.words import UNKNOWN
from preflight.units import GIB, SECONDS_PER_HOUR, format_count, format_seconds
from preflight.verdict.needs import BUDGET_WORDS

N_ROWS = 24
WIDTH, TABLE_WIDTH = 100, 120  # notes may stand out
LAYOUT = "{rank:>3} {front:1} {hw:<16} {offer:<20} {time:>9} {money:>8} {kwh:>7} {co2:>6}  {note}"
BY_WORDS = {CompareBy.cost: "money", CompareBy.time: "time", CompareBy.energy: "energy"}


def compare_exit_code(comparison: Comparison) -> ExitCode:
    """0 when one machine at least keeps every budget."""
    return ExitCode.OK if any(row.is_go for row in comparison.rows) else ExitCode.OVER_BUDGET


def compare_text(comparison: Comparison, *, is_full: bool) -> str:
    """The table, the best first, with what it rests on."""
    rows = comparison.rows
    shown = [i for i in range(len(rows)) if is_full or i in _at_a_glance(rows)]
    lines = [*_head(comparison), "", _header(), *(_line(i + 1, rows[i]) for i in shown), ""]
    n_more = len(rows) - len(shown)
    if n_more:
        lines.append(f"{n_more} more offers and counts with report=full, or compare.csv=FILE.")
    return "\n".join([*lines, *_foot(comparison)]) + "\n"


def _at_a_glance(rows: Sequence[Row]) -> set[int]:
    """The front and your machine whatever their rank, then the best of each card as far as there is room."""
    chosen = [i for i, row in enumerate(rows) if row.is_on_front or row.is_yours]
    cards = {rows[i].card_name for i in chosen if rows[i].is_yours}
    for i, row in enumerate(rows):
        if row.card_name not in cards:
            cards.add(row.card_name)
            chosen.append(i)
    return set(list(dict.fromkeys(chosen))[:N_ROWS])


def _head(comparison: Comparison) -> list[str]:
    rows = comparison.rows
    n_cards = len({row.card_name for row in rows})
    n_go = sum(row.is_go for row in rows)
    kept = f"{n_go} fit and keep {' and '.join(comparison.budgets)}" if comparison.budgets else f"{n_go} fit"
    text = (
        f"{comparison.model_name}, {format_count(comparison.total_tokens)} tokens, on {len(rows)} offers and counts of "
        f"{n_cards} cards, ranked by {BY_WORDS[comparison.options.by]}: {kept}."
    )
    if comparison.n_slower:
        text += f" {comparison.n_slower} slower than compare.max_hours={comparison.options.max_hours:g} left out"
        fastest = comparison.fastest_left_out
        text += "." if fastest is None else f", of which the fastest is hw={fastest.hw}: {_time(fastest)}."
    return [*textwrap.wrap(text, WIDTH), *_winners(rows)]


def _winners(rows: Sequence[Row]) -> list[str]:
    """The ends of the front, in words; where the cheapest is an old price, also the cheapest of today's."""
    front = [row for row in rows if row.is_on_front and row.usd is not None and row.hours is not None]
    if not front:
        return []
    ends = {
        "cheapest": min(front, key=lambda row: row.usd.mid if row.usd else 0.0),
        "fastest": min(front, key=lambda row: row.hours.mid if row.hours else 0.0),
    }
    lines = [_winner(name, row) for name, row in ends.items()]
    if _old_price(ends["cheapest"]):
        lately = [row for row in rows if row.is_go and row.usd is not None and _is_seen_lately(row)]
        now = min(lately, key=lambda row: row.usd.mid if row.usd else 0.0, default=None)
        lines[1:1] = [] if now is None else [_winner("or", now, f"the cheapest price of the last {STALE_DAYS} days")]
    return lines


def _winner(name: str, row: Row, why: str = "") -> str:
    """With the age of a price that may not be had any more."""
    parts = (f"{name:9}hw={row.hw}: {_money(row)} in {_time(row)}", _over(row), _offer(row), _old_price(row) or why)
    text = ", ".join(part for part in parts if part)
    return "\n".join(textwrap.wrap(text, WIDTH, subsequent_indent=" " * 9))


def _is_seen_lately(row: Row) -> bool:
    """A price, and not an old one."""
    return row.plan is not None and _is_price(row.plan.hw.offer) and not _old_price(row)


def _is_price(offer: Offer) -> bool:
    return not offer.owned and offer.usd_per_hour is not None


def _header() -> str:
    return LAYOUT.format(
        rank="", front="", hw="hw", offer="offer", time="time", money="money", kwh="kWh", co2="kg CO2",
        note="",
    ).rstrip()  # fmt: skip


def _line(rank: int, row: Row) -> str:
    line = LAYOUT.format(
        rank=rank,
        front="*" if row.is_on_front else "",
        hw=row.hw[:16],
        offer=_offer(row)[:20],
        time=_time(row) if row.fits else "-",
        money=_money(row) if row.fits else "-",
        kwh=_amount(row.kwh) if row.fits else "-",
        co2=_amount(row.co2_kg) if row.fits else "-",
        note=_note(row),
    )
    if row.plan is None:
        line = f"{rank:>3}   {row.hw[:16]:<16} {row.why_not}"
    line = line.rstrip()
    return line if len(line) <= TABLE_WIDTH else line[: TABLE_WIDTH - 3] + "..."


def _offer(row: Row) -> str:
    if row.plan is None:
        return ""
    offer = row.plan.hw.offer
    if offer.owned:
        return "yours"
    if row.is_yours:
        return f"as asked: {offer.provider}"
    if offer.usd_per_hour is None:
        return "price unknown"
    name = f"{offer.provider} {offer.instance}"
    return f"spot: {name}" if row.is_spot else name


def _time(row: Row) -> str:
    return UNKNOWN if row.hours is None else format_seconds(row.hours.mid * SECONDS_PER_HOUR)


def _money(row: Row) -> str:
    money = row.plan.budget.money if row.plan is not None else USD
    return UNKNOWN if row.usd is None else format_money(row.usd.mid, money)


def _amount(band: Band | None) -> str:
    if band is None:
        return "?"
    return f"{band.mid:,.0f}" if band.mid >= 100 else f"{band.mid:.1f}" if band.mid >= 1 else f"{band.mid:.2g}"


def _note(row: Row) -> str:
    if not row.fits:
        return f"does not fit{_needed(row)}"
    changes = (re.sub(r" .* -> ", " ", change) for change in row.lowered)  # "batch 6"
    lowered = ", ".join(re.sub("^(parallel|checkpointing|optimizer) (?!full|selective)", "", one) for one in changes)
    return ", ".join(part for part in (_over(row), lowered, _old_price(row)) if part)


def _over(row: Row) -> str:
    over = "+".join(BUDGET_WORDS[budget] for budget in row.broken)
    return f"over {over}" if over else ""


def _needed(row: Row) -> str:
    """Of the plan as far as it was lowered."""
    memory = row.estimate.memory if row.estimate is not None else None
    return "" if memory is None else f": {memory.device.high / GIB:.0f} GiB"


def _old_price(row: Row) -> str:
    """Marketplace prices move: one of long ago says when it was seen."""
    if row.plan is None or not _is_price(row.plan.hw.offer):
        return ""
    offer, today = row.plan.hw.offer, date.fromisoformat(row.plan.created_at[:10])
    n_days = (today - date.fromisoformat(offer.as_of)).days if offer.as_of else 0
    return f"price of {offer.as_of[:7]}" if n_days > STALE_DAYS or not is_current(offer) else ""


def _foot(comparison: Comparison) -> list[str]:
    dates = [row.plan.hw.offer.as_of for row in comparison.rows if row.plan is not None and row.plan.hw.offer.source]
    notes = ["* no other is both cheaper and faster."] if any(row.is_on_front for row in comparison.rows) else []
    n_not = sum(not row.fits and row.plan is not None for row in comparison.rows)
    if n_not and comparison.may_lower_more:
        notes.append(f"{n_not} do not fit; lowering=all also tries shared states, recomputation and 8-bit AdamW.")
    if comparison.options.spot:
        notes.append("Spot machines may be taken away: the restarts to expect are counted, waiting is not.")
    spot = " hw.spot=true" if comparison.rows[0].is_spot else ""
    notes.append(
        f"Middles of the bands; the bill of one, with its band: hw={comparison.rows[0].hw}{spot} dry_run=true."
    )
    if dates:
        notes.append(f"Prices of {min(dates)} to {max(dates)}.")
    return textwrap.wrap(" ".join(notes), WIDTH)


def compare_document(comparison: Comparison) -> dict[str, Any]:
    """`report=json`: all rows; null is unknown."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": comparison.model_name,
        "total_tokens": comparison.total_tokens,
        "by": comparison.options.by.name,
        "budgets": list(comparison.budgets),
        "n_slower_left_out": comparison.n_slower,
        "rows": [_row_document(rank, row) for rank, row in enumerate(comparison.rows, start=1)],
        "exit_code": int(compare_exit_code(comparison)),
    }


def _row_document(rank: int, row: Row) -> dict[str, Any]:
    flat = _flat(rank, row)
    bands = {"hours": row.hours, "cost_usd": row.usd, "energy_kwh": row.kwh, "co2_kg": row.co2_kg}
    words = {"lowered": list(row.lowered), "over": list(row.broken), "why_not": row.why_not or None}
    return flat | {name: _band(band) for name, band in bands.items()} | words


def _band(band: Band | None) -> dict[str, float] | None:
    return None if band is None else {"low": band.low, "mid": band.mid, "high": band.high}


def _flat(rank: int, row: Row) -> dict[str, Any]:
    plan, estimate = row.plan, row.estimate
    offer = plan.hw.offer if plan is not None else None
    memory = estimate.memory if estimate is not None else None
    return {
        "rank": rank,
        "hw": row.hw,
        "card": row.card_name,
        "n_gpus": row.n_gpus,
        "provider": offer.provider if offer is not None and (offer.owned or offer.source) else None,
        "instance": offer.instance if offer is not None else None,
        "is_yours": row.is_yours,
        "is_spot": row.is_spot,
        "usd_per_hour": estimate.cost.rates.usd_per_hour if estimate is not None else None,
        "price_as_of": (offer.as_of or None) if offer is not None else None,
        "is_go": row.is_go,
        "is_on_front": row.is_on_front,
        "fits": row.fits,
        "hours": row.hours.mid if row.hours is not None else None,
        "cost_usd": row.usd.mid if row.usd is not None else None,
        "energy_kwh": row.kwh.mid if row.kwh is not None else None,
        "co2_kg": row.co2_kg.mid if row.co2_kg is not None else None,
        "model": plan.model.name if plan is not None else None,
        "precision": plan.trainer.precision.value if plan is not None else None,
        "micro_batch_size": plan.trainer.micro_batch_size if plan is not None else None,
        "grad_accum_steps": plan.trainer.grad_accum_steps if plan is not None else None,
        "device_bytes_high": round(memory.device.high) if memory is not None else None,
        "usable_bytes": memory.usable_bytes if memory is not None else None,
        "lowered": "; ".join(row.lowered),
        "over": " ".join(row.broken),
        "why_not": row.why_not,
    }


def compare_csv(comparison: Comparison) -> str:
    """All rows with a header; an empty cell is unknown."""
    rows = [_flat(rank, row) for rank, row in enumerate(comparison.rows, start=1)]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
