"""Rounding, interruptions and currencies as the catalog has them; unknown stays unknown."""

from __future__ import annotations

import pytest

from conf.choices import Currency
from preflight.hw_plan import Billing
from preflight.money import format_money, rate_words
from preflight.plan import Money
from preflight.providers import billing, given_interruptions, interruptions, money

CNY = Money(currency=Currency.cny, per_usd=7.0, symbol="¥", source="test", as_of="2026-01-08")


def test_known_providers_round_and_strangers_do_not():
    assert billing("aws").increment_seconds == 1
    assert billing("aws").minimum_seconds == 60
    assert billing("lambda").increment_seconds == 60
    assert billing("nobody") == Billing()


def test_interruptions_are_a_band_with_source_and_date():
    for provider in ("aws", "nobody"):
        found = interruptions(provider)
        assert 0 < found.low_per_hour < found.mid_per_hour < found.high_per_hour
        assert found.source
        assert found.as_of
    given = given_interruptions(2.4, "2026-11-30")
    assert (given.low_per_hour, given.mid_per_hour, given.high_per_hour) == pytest.approx((0.05, 0.1, 0.2))


def test_every_other_currency_has_a_dated_rate():
    for currency in set(Currency) - {Currency.usd}:
        found = money(currency)
        assert found.per_usd > 0
        assert found.as_of
    assert money(Currency.usd) == Money()


def test_money_is_written_in_its_currency():
    assert format_money(4.2) == "$4.20"
    assert format_money(4.2, CNY) == "¥29.40"
    assert format_money(1000.0, CNY) == "¥7,000"
    assert rate_words(Money()) == ""
    assert rate_words(CNY) == "7 CNY per USD of 2026-01-08"
