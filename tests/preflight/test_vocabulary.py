"""One name for one thing, before and after: both sides are walked leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from preflight.actual import EARLY_PEAKS, NUMBERS, Actual, flat_actual
from preflight.bill import make_bill
from preflight.flat import ONLY_ESTIMATED, ONLY_MEASURED, flat_estimate
from preflight.plan import RunPlan
from scripts.report_rows import CSV_LEAVES, QUANTITIES
from trainers.clocks import TERMS

NO_NUMBERS = {"wall_terms_seconds", "early_peaks_bytes", "exit_code", "exit_reason", "failed_rank", "device", "torch"}


def measured() -> Actual:
    """Something in every field, whatever it is."""
    samples: dict[Any, Any] = {int: 1, float: 1.0, str: "", bool: True}
    values = {name: samples.get(hint, 1.0) for name, hint in get_type_hints(Actual).items()}
    return Actual(**values | {
        "wall_terms_seconds": dict.fromkeys(TERMS, 1.0), "early_peaks_bytes": dict.fromkeys(EARLY_PEAKS, 1),
    })  # fmt: skip


def leaves_of(flat: dict[str, Any]) -> set[str]:
    """Without the side and the edges."""
    names = {name.partition("/")[2] for name in flat}
    return {name for name in names if not (name.endswith(("_low", "_high")) and name.rpartition("_")[0] in names)}


@pytest.mark.parametrize("card", ["4090", "cpu"])
def test_estimate_and_actual_have_equal_leaves_but_for_those_with_a_reason(
    make_plan: Callable[..., RunPlan], card: str
):
    estimated = leaves_of(flat_estimate(make_bill(make_plan(card=card, model="tiny"), ()).estimate))
    actual = leaves_of(flat_actual(measured()))
    assert estimated - actual == set(ONLY_ESTIMATED) & estimated
    assert actual - estimated == set(ONLY_MEASURED)
    assert set(ONLY_ESTIMATED) - estimated <= {"wall_restarts_seconds"}  # of spot machines
    assert all(ONLY_ESTIMATED.values())
    assert all(ONLY_MEASURED.values())


def test_every_number_of_an_actual_is_a_leaf():
    assert {field.name for field in fields(Actual)} - NO_NUMBERS == set(NUMBERS)


def test_every_pair_that_varies_has_a_band(make_plan: Callable[..., RunPlan]):
    flat = flat_estimate(make_bill(make_plan(), ()).estimate)
    paired = leaves_of(flat) & leaves_of(flat_actual(measured()))
    for leaf in paired:
        if flat[f"estimate/{leaf}"] is None:  # the loss on a tokenizer without published curves
            continue
        assert flat[f"estimate/{leaf}_low"] <= flat[f"estimate/{leaf}"] <= flat[f"estimate/{leaf}_high"], leaf


def test_the_report_speaks_of_leaves_that_both_sides_have(make_plan: Callable[..., RunPlan]):
    both = leaves_of(flat_estimate(make_bill(make_plan(), ()).estimate)) & leaves_of(flat_actual(measured()))
    assert {*CSV_LEAVES, *(quantity.leaf for quantity in QUANTITIES)} <= both
