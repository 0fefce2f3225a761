"""How do providers bill, how often do they take spot machines away, and what is a dollar worth? From conf/catalog.

Who is not listed rounds by rules that nobody knows here: then nothing is rounded, and the bill says so.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from conf.choices import Currency
from preflight.hw_plan import Billing, Interruptions
from preflight.plan import Money
from preflight.tables import Columns, read_table

CATALOG_DIR = Path(__file__).resolve().parent.parent / "conf" / "catalog"
HOURS_PER_DAY = 24.0
# A rate that somebody gives for his machines is still the rate of a random process: p10 and p90 of a few days' count.
GIVEN_LOW, GIVEN_HIGH = 0.5, 2.0
_COLUMNS = {
    "billing": Columns(
        texts=("provider", "increment_seconds", "source"), numbers=("increment_seconds", "minimum_seconds"), forms={},
        dates=("as_of",),
    ),
    "interruptions": Columns(
        texts=("provider", "low_per_hour", "mid_per_hour", "high_per_hour", "source"),
        numbers=("low_per_hour", "mid_per_hour", "high_per_hour"), forms={}, dates=("as_of",),
    ),
    "currencies": Columns(
        texts=("currency", "symbol", "source"), numbers=(), forms={"per_usd": r"\d+(\.\d+)?"}, dates=("as_of",)
    ),
}  # fmt: skip


def billing(provider: str) -> Billing:
    """How its hours are rounded."""
    row = _by_name("billing", "provider").get(provider)
    if row is None:
        return Billing()
    return Billing(
        increment_seconds=float(row["increment_seconds"]),
        minimum_seconds=float(row["minimum_seconds"] or 0.0),
        source=row["source"],
        as_of=row["as_of"],
    )


def interruptions(provider: str) -> Interruptions:
    """Of one spot node; `other` when the provider is not listed."""
    rows = _by_name("interruptions", "provider")
    row = rows.get(provider, rows["other"])
    return Interruptions(
        low_per_hour=float(row["low_per_hour"]),
        mid_per_hour=float(row["mid_per_hour"]),
        high_per_hour=float(row["high_per_hour"]),
        source=row["source"],
        as_of=row["as_of"],
    )


def given_interruptions(per_day: float, today: str) -> Interruptions:
    """Somebody knows his machines."""
    per_hour = per_day / HOURS_PER_DAY
    return Interruptions(
        low_per_hour=GIVEN_LOW * per_hour,
        mid_per_hour=per_hour,
        high_per_hour=GIVEN_HIGH * per_hour,
        source="hw.interruptions_per_day",
        as_of=today,
    )


def money(currency: Currency) -> Money:
    """The rate, with its date; dollars need no table."""
    if currency is Currency.usd:
        return Money()
    row = _by_name("currencies", "currency")[currency.name]
    return Money(
        currency=currency, per_usd=float(row["per_usd"]), symbol=row["symbol"], source=row["source"], as_of=row["as_of"]
    )


@cache
def _by_name(table: str, key: str) -> dict[str, dict[str, str]]:
    return {row[key]: row for row in read_table(CATALOG_DIR / f"{table}.csv", _COLUMNS[table])}
