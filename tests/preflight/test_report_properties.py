"""Any bill can be shown: one screen of 80 columns, and a document of finite numbers."""

from __future__ import annotations

import json

from hypothesis import given, settings
from random_plans import SETTINGS, plan_of, questions

from conf.choices import ReportChoice
from preflight.bill import make_bill
from preflight.report.grid import grid_header, grid_row
from preflight.report.render import render


@given(question=questions())
@settings(SETTINGS, max_examples=40)
def test_render_any_bill_on_one_screen(make_plan, question):
    lines = render(make_bill(plan_of(make_plan, question), ()), ReportChoice.text).splitlines()
    assert max(len(line) for line in lines) <= 80
    assert len(lines) <= 55  # three broken budgets, and every rung of the ladder
    assert lines[0].split()[0].rstrip(",") in ("GO", "NO")


@given(question=questions())
@settings(SETTINGS, max_examples=40)
def test_render_any_bill_in_full_and_as_finite_json(make_plan, question):
    bill = make_bill(plan_of(make_plan, question), ())
    assert render(bill, ReportChoice.full).startswith(render(bill, ReportChoice.text))
    document = json.loads(render(bill, ReportChoice.json), parse_constant=lambda name: 1 / 0)
    assert document["exit_code"] in (0, 3)


@given(question=questions())
@settings(SETTINGS, max_examples=20)
def test_grid_row_has_the_columns_of_its_header(make_plan, question):
    row = grid_row(make_bill(plan_of(make_plan, question), ()))
    assert row.count("\n") == 0
    assert len(row) <= len(grid_header()) + 16
