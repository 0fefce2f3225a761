"""Estimated beside actual."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simple_sums import simple_estimate

from preflight.actual import Actual
from preflight.report.comparison import actual_text

TABLE = """\
                    estimated                 actual        ratio
peak memory         6.4 GiB (5.8-7.1)         6.5 GiB       1.01
step time           4.00 s (3.20-5.00)        6.00 s        1.50  outside
wall time           67 min (53-83)            70 min        1.05
  steps             67 min                    68 min        1.02
  compile           unknown                   2.0 min       -
cost                $1.51 ($1.21-1.89)        $1.59         1.05
energy              556 Wh (444-694)          unknown       -
"""


@pytest.fixture
def actual():
    known = {
        name: None
        for name in Actual.__dataclass_fields__
        if name
        not in {"wall_terms_seconds", "n_steps_done", "first_step", "exit_code", "exit_reason", "device", "torch"}
    }
    return Actual(
        **known | {"peak_device_bytes": 13 * 2**29, "step_seconds": 6.0, "wall_seconds": 4200.0, "cost_usd": 1.59},
        wall_terms_seconds={"steps": 4080.0, "compile": 120.0, "shutdown": 0.5},
        n_steps_done=1000, exit_code=0, exit_reason="done", device="RTX 4090", torch="2.13.0",
    )  # fmt: skip


def test_actual_text_is_a_table_with_ratios_and_says_what_was_outside_the_band(make_plan, actual):
    assert actual_text(simple_estimate(make_plan()), actual, 1000) == TABLE


def test_actual_text_adds_allocated_memory_where_it_was_measured(make_plan, actual):
    text = actual_text(simple_estimate(make_plan()), replace(actual, peak_allocated_bytes=6 * 2**30), 1000)
    assert "  allocated         6.4 GiB (5.8-7.1)         6.0 GiB       0.93" in text


def test_actual_text_never_divides_by_what_is_unknown(make_plan, actual):
    plan = make_plan()
    plan = replace(plan, hw=replace(plan.hw, card=replace(plan.hw.card, peak_flops_per_second={})))
    text = actual_text(simple_estimate(plan), actual, 1000)
    assert "step time           unknown                   6.00 s        -" in text


@pytest.mark.parametrize(("first_step", "n_steps_done"), [(0, 11), (466, 1000), (466, 700)])
def test_actual_text_compares_only_steps_and_memory_of_a_part_of_a_run(make_plan, actual, first_step, n_steps_done):
    part = replace(actual, first_step=first_step, n_steps_done=n_steps_done, wall_seconds=170.0)
    text = actual_text(simple_estimate(make_plan()), part, 1000)
    *rows, remark = text.splitlines()
    ratios = {row[:20].strip(): row[60:] for row in rows}
    assert ratios == {
        "": "ratio", "peak memory": "1.01", "step time": "1.50  outside", "wall time": "-", "steps": "-",
        "compile": "-", "cost": "-", "energy": "-",
    }  # fmt: skip
    assert remark == (
        f"totals are of steps {first_step + 1}-{n_steps_done:,} of 1,000, "
        "the estimate is of the whole run: not compared"
    )


def test_actual_text_compares_nothing_of_a_run_without_steps(make_plan, actual):
    crashed = replace(actual, first_step=466, n_steps_done=466, step_seconds=None)
    *rows, remark = actual_text(simple_estimate(make_plan()), crashed, 1000).splitlines()
    assert {row[60:] for row in rows[1:]} == {"-"}
    assert remark == "the run ended before its first step: nothing is compared"


def test_actual_text_compares_nothing_of_a_run_that_left_no_measurements(make_plan, actual):
    unknown = dict.fromkeys(("peak_device_bytes", "step_seconds", "wall_seconds", "cost_usd"))
    killed = replace(actual, **unknown, wall_terms_seconds={}, n_steps_done=10)
    *rows, remark = actual_text(simple_estimate(make_plan()), killed, 1000).splitlines()
    assert {row[60:] for row in rows[1:]} == {"-"}
    assert remark == "the run ended before it could measure: nothing is compared"
