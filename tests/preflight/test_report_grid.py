"""One line a job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simple_sums import use_simple_sums

from conf.choices import PolicyChoice
from preflight.bill import make_bill
from preflight.errors import ConfigError, Problem
from preflight.report.grid import grid_error_row, grid_header, grid_row
from preflight.verdict.judge import Finding, Severity


@pytest.fixture(autouse=True)
def _simple(monkeypatch):
    use_simple_sums(monkeypatch)


def test_grid_rows_stand_under_their_header(make_plan):
    plan = make_plan(micro_batch_size=12, grad_accum_steps=10, n_gpus=4, n_steps=20_345)
    assert [grid_header(), grid_row(make_bill(plan, ()))] == [
        "model       hw         verdict      batch          memory      time   money",
        "gpt2_124m   4x4090     GO           12x10  6.4 / 22.3 GiB     5.7 h   $7.69",
    ]


def test_grid_row_names_the_budget_of_a_refusal(make_plan):
    plan = make_plan(micro_batch_size=60, lowering={"policy": PolicyChoice.refuse})
    assert " NO memory " in grid_row(make_bill(plan, ()))


def test_grid_row_says_that_a_plan_was_lowered(make_plan):
    assert " GO, LOWERED " in grid_row(make_bill(make_plan(micro_batch_size=60), ()))


def test_grid_row_says_unknown_not_zero(make_plan):
    plan = make_plan(usd_per_hour=None)
    plan = replace(plan, hw=replace(plan.hw, card=replace(plan.hw.card, peak_flops_per_second={})))
    assert grid_row(make_bill(plan, ())).split()[-2:] == ["unknown", "unknown"]


def test_grid_row_marks_a_machine_that_is_not_here(make_plan):
    mismatch = Finding(check="machine", severity=Severity.error, message="elsewhere", fix="", exit_code=4)
    assert " GO on paper " in grid_row(make_bill(make_plan(), (mismatch,)))


def test_grid_error_row_is_one_line_with_the_fix(make_plan):
    problem = Problem(path="hw", value="4x4091", message="no such card", fix="hw=4x4090")
    assert grid_error_row("hw=4x4091", ConfigError([problem])) == "hw=4x4091: no such card. To fix: hw=4x4090"
    assert grid_error_row("model=tiny hw=4x4091", ConfigError([problem, problem])) == (
        "model=tiny hw=4x4091: no such card. To fix: hw=4x4090 (and 1 more)"
    )
    assert grid_error_row("seed=1", ConfigError([problem])) == "seed=1: hw=4x4091: no such card. To fix: hw=4x4090"
