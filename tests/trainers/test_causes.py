"""Which cause is named? One test for each that can be seen, and what is left when none is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainers.card_meters import CardState
from trainers.causes import Evidence, likely_cause

BILL = {"startup": 5.0, "compile": 1.0, "steps": 100.0, "evaluations": 10.0, "checkpoints": 5.0, "data": 0.0}
SLOW = Evidence(
    bill_seconds=BILL,
    now_seconds=BILL | {"steps": 200.0},
    step_seconds=2.0,
    bill_step_seconds=1.0,
    n_calibration_runs=0,
    is_warming_up=False,
    data_wait_fraction=0.01,
    processor_wait_fraction=0.02,
    card=CardState(),
)
HOT = CardState(
    clock_hertz=1.2e9, max_clock_hertz=1.98e9, temperature_celsius=88.0, reasons=("thermal slowdown",),
    n_other_processes=0,
)  # fmt: skip


def test_the_bill_itself_is_wrong_when_nothing_slows_the_steps():
    assert likely_cause(SLOW) == (
        "a step takes 2.00 s, the bill said 1.00 s: it was not calibrated, the next one will know"
    )
    assert "its calibration (3 runs) does not fit this run" in likely_cause(replace(SLOW, n_calibration_runs=3))


def test_a_faster_run_has_no_culprit_but_the_bill():
    fast = replace(SLOW, now_seconds=BILL | {"steps": 50.0}, step_seconds=0.5, data_wait_fraction=0.5)
    assert likely_cause(fast).startswith("a step takes 500 ms, the bill said 1.00 s")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"is_warming_up": True, "data_wait_fraction": 0.9}, "compilation is still warming up"),
        ({"data_wait_fraction": 0.4, "card": HOT}, "waiting for data takes 40% of the steps"),
        ({"card": HOT, "processor_wait_fraction": 0.9}, "held at 1200 of 1980 MHz (thermal slowdown, 88 C)"),
        ({"card": replace(HOT, reasons=("power cap",))}, "held at 1200 of 1980 MHz (power cap, 88 C)"),
        ({"card": CardState(n_other_processes=2)}, "2 other processes compute on the same card"),
        ({"processor_wait_fraction": 0.45}, "other processes had the processor 45% of the time"),
    ],
)
def test_what_slows_the_steps_is_named_the_most_direct_sign_first(changes: dict[str, object], words: str):
    assert words in likely_cause(replace(SLOW, **changes))


def test_a_power_cap_at_a_full_clock_is_how_cards_train():
    capped = replace(HOT, clock_hertz=1.8e9, reasons=("power cap",))
    assert likely_cause(replace(SLOW, card=capped)).startswith("a step takes")


@pytest.mark.parametrize(
    ("term", "words"),
    [
        ("startup", "start-up: 5.0 min instead of 5.00 s"),
        ("compile", "compilation and first-time work: 5.0 min instead of 1.00 s"),
        ("checkpoints", "checkpoints: 5.0 min instead of 5.00 s"),
        ("evaluations", "evaluations: 5.0 min instead of 10 s"),
    ],
)
def test_a_term_beside_the_steps_is_named_with_both_numbers(term: str, words: str):
    assert likely_cause(replace(SLOW, now_seconds=BILL | {term: 301.0})) == words


def test_a_term_of_a_second_is_no_cause():
    """Two seconds faster in all, 1.5 of them of the data: little of 100 s, and little in itself."""
    quick = replace(SLOW, bill_seconds=BILL | {"data": 1.5}, now_seconds=BILL | {"steps": 99.0, "data": 0.025})
    assert likely_cause(quick).startswith("a step takes")
    short = {"steps": 3.0, "data": 1.5}
    quick = replace(quick, bill_seconds=short, now_seconds={"steps": 2.5, "data": 0.025})
    assert likely_cause(quick).startswith("a step takes")


def test_without_a_bill_by_terms_only_the_step_is_told():
    assert likely_cause(replace(SLOW, bill_seconds={}, bill_step_seconds=None)).startswith("a step takes 2.00 s: ")
