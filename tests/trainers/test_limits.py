"""Used up, sure to break, or fine: budgets held against hand-made spendings and forecasts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from preflight.band import Band, exact
from preflight.plan import RunPlan
from trainers.forecast import Forecast, Spending
from trainers.limits import Use, uses

Plans = Callable[..., RunPlan]
NOON = 1_000_000.0


def hours(low: float, mid: float, high: float) -> Band:
    return Band(low=low * 3600, mid=mid * 3600, high=high * 3600, source="")


def forecast_of(wall: Band, *, remaining: Band | None = None, cost_usd: Band | None = None) -> Forecast:
    return Forecast(
        step_seconds=exact(1.0, ""), remaining_seconds=remaining or wall, wall_seconds=wall, cost_usd=cost_usd,
        energy_kwh=None,
    )  # fmt: skip


def the_use(plan: RunPlan, forecast: Forecast | None = None, **spent: Any) -> Use:
    settings = {"wall_seconds": 0.0, "cost_usd": 0.0, "usd_per_hour": 1.0, "energy_kwh": 0.0, "watts": None} | spent
    (use,) = uses(plan.budget, Spending(**settings), forecast, NOON)
    return use


def test_hours_are_used_up_at_the_limit_and_not_before(make_plan: Plans):
    plan = make_plan(budget={"max_hours": 2.0})
    assert not the_use(plan, wall_seconds=7199.0).is_used_up
    use = the_use(plan, wall_seconds=7200.0)
    assert use.is_used_up
    assert use.used_up_text == "budget.max_hours=2 is used up: 2 h"
    assert use.remedy == "budget.max_hours=null"  # nobody knows yet how much it takes


def test_a_forecast_breaks_a_budget_when_even_its_low_edge_does(make_plan: Plans):
    plan = make_plan(budget={"max_hours": 24.0})
    sure, likely, fine = (
        the_use(plan, forecast_of(hours(*edges))) for edges in ((25, 28, 33), (22, 28, 33), (20, 22, 26))
    )
    assert (sure.will_break(), likely.will_break(), fine.will_break()) == (True, False, False)
    assert (sure.may_break, likely.may_break, fine.may_break) == (True, True, False)
    assert not sure.will_break(0.9)  # the last steps were faster, and with them it takes 22.5 h
    assert sure.expected_text == "the run takes 28 h (25 h to 33 h) of budget.max_hours=24"
    assert sure.remedy == "budget.max_hours=35"  # 33 and a twentieth, in two digits


def test_money_is_judged_where_it_is_known(make_plan: Plans):
    plan = make_plan(budget={"max_hours": None, "max_cost_usd": 10.0})
    use = the_use(plan, forecast_of(hours(1, 1, 1), cost_usd=exact(12.0, "")), cost_usd=4.0)
    assert (use.is_used_up, use.will_break()) == (False, True)
    assert use.expected_text == "the run takes $12.00 ($12.00 to $12.00) of budget.max_cost_usd=10"
    unknown = Spending(wall_seconds=9.0, cost_usd=None, usd_per_hour=None, energy_kwh=None, watts=None)
    assert uses(plan.budget, unknown, None, NOON) == []


def test_energy_is_judged_on_what_was_used_so_far(make_plan: Plans):
    plan = make_plan(budget={"max_hours": None, "max_energy_kwh": 0.5})
    assert the_use(plan, energy_kwh=0.6).used_up_text == "budget.max_energy_kwh=0.5 is used up: 600 Wh"


def test_a_deadline_is_a_moment_whatever_earlier_segments_took(make_plan: Plans):
    due = {"max_hours": None, "deadline": "2026-12-01T08:00+00:00", "deadline_unix_seconds": NOON + 7200.0}
    plan = make_plan(budget=due)
    use = the_use(plan, forecast_of(hours(99, 99, 99), remaining=hours(2.5, 3, 4)), wall_seconds=1e6)
    assert not use.is_used_up
    assert use.will_break()
    assert (
        use.expected_text == "the run takes 3 h more (2.5 h to 4 h), budget.deadline=2026-12-01T08:00+00:00 is in 2 h"
    )
    late = make_plan(budget=due | {"deadline_unix_seconds": NOON - 1.0})
    assert the_use(late).used_up_text == "budget.deadline=2026-12-01T08:00+00:00 has come"


def test_without_limits_nothing_is_held_against_anything(make_plan: Plans):
    plan = make_plan(budget={"max_hours": None})
    spending = Spending(wall_seconds=1e9, cost_usd=1e9, usd_per_hour=1.0, energy_kwh=1e9, watts=None)
    assert uses(plan.budget, spending, forecast_of(hours(1e6, 1e6, 1e6)), NOON) == []
