"""Estimated beside actual."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simple_sums import simple_estimate

from preflight.actual import Actual
from preflight.report.render import actual_text

TABLE = """\
                    estimated                 actual        ratio
peak memory         6.4 GiB (5.8-7.1)         6.5 GiB       1.01
step time           4.00 s (3.20-5.00)        6.00 s        1.50  outside
wall time           67 min (53-83)            70 min        1.05
  steps             67 min                    68 min        1.02
  compile           unknown                   2 min         -
cost                $1.51 ($1.21-1.89)        $1.59         1.05
energy              556 Wh (444-694)          unknown       -
"""


@pytest.fixture
def actual():
    known = {
        name: None
        for name in Actual.__dataclass_fields__
        if name not in {"wall_terms_seconds", "n_steps_done", "exit_code", "exit_reason", "device", "torch"}
    }
    return Actual(
        **known | {"peak_device_bytes": 13 * 2**29, "step_seconds": 6.0, "wall_seconds": 4200.0, "cost_usd": 1.59},
        wall_terms_seconds={"steps": 4080.0, "compile": 120.0, "shutdown": 0.5},
        n_steps_done=1000, exit_code=0, exit_reason="done", device="RTX 4090", torch="2.13.0",
    )  # fmt: skip


def test_actual_text_is_a_table_with_ratios_and_says_what_was_outside_the_band(make_plan, actual):
    assert actual_text(simple_estimate(make_plan()), actual) == TABLE


def test_actual_text_adds_allocated_memory_where_it_was_measured(make_plan, actual):
    text = actual_text(simple_estimate(make_plan()), replace(actual, peak_allocated_bytes=6 * 2**30))
    assert "  allocated         6.4 GiB (5.8-7.1)         6.0 GiB       0.93" in text


def test_actual_text_never_divides_by_what_is_unknown(make_plan, actual):
    plan = make_plan()
    plan = replace(plan, hw=replace(plan.hw, card=replace(plan.hw.card, peak_flops_per_second={})))
    text = actual_text(simple_estimate(plan), actual)
    assert "step time           unknown                   6.00 s        -" in text
