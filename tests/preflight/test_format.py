"""Durations are said in the unit that a person would take."""

from __future__ import annotations

import pytest

from preflight.band import around
from preflight.report.words import seconds_with_band
from preflight.units import SECONDS_PER_YEAR, format_count, format_hours, format_seconds
from preflight.verdict.needs import amount


@pytest.mark.parametrize(
    ("hours", "shown"),
    [
        (0.0, "0 ms"),
        (0.001, "3.60 s"),
        (0.05687, "3.4 min"),
        (0.5, "30 min"),
        (1.4, "84 min"),
        (1.5, "1.5 h"),
        (24.0, "24 h"),
        (63.6605, "63.66 h"),
        (4_380.0, "4,380 h"),
        (4_683_315.0, "534 years"),
        (-0.5, "-30 min"),
    ],
)
def test_hours_are_said_in_minutes_and_seconds_where_they_are_short(hours: float, shown: str):
    assert format_hours(hours) == amount("hours", hours) == shown


def test_counts_are_rounded_before_their_letter_is_chosen():
    shown = [format_count(n) for n in (999_997_440, 999_900_000, 999_949, 999_999)]
    assert shown == ["1.0B", "999.9M", "999,949", "1.0M"]


def test_seconds_and_their_band_have_one_unit():
    assert format_seconds(3 * SECONDS_PER_YEAR) == "3.0 years"
    assert seconds_with_band(around(4 * SECONDS_PER_YEAR, 0.5, 2.0, "formula")) == "4.0 years (2.0-8.0)"
    assert seconds_with_band(around(81.0, 0.5, 2.0, "formula")) == "81 s (40-162)"
