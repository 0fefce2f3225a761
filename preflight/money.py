"""How is money written, in the currency that was asked for? The sums are in USD."""

from __future__ import annotations

from conf.choices import Currency
from preflight.plan import Money
from preflight.units import format_usd

USD = Money()


def format_money(usd: float, money: Money = USD) -> str:
    """`$4.20`, `¥29.48`: the digits that matter."""
    return format_usd(usd * money.per_usd).replace("$", money.symbol)


def rate_words(money: Money) -> str:
    """`7.02 CNY per USD of 2026-01-08`; nothing where nothing was converted."""
    if money.currency is Currency.usd:
        return ""
    return f"{money.per_usd:g} {money.currency.name.upper()} per USD of {money.as_of}"
