"""What the last quarter buys and what a budget would best be spent on, worked by hand."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest

from preflight.band import Band, exact
from preflight.cost import CostEstimate, estimate_cost
from preflight.duration import WallEstimate
from preflight.plan import RunPlan
from preflight.value import ValueEstimate, estimate_value
from preflight.worth import Worth, estimate_worth
from tests.conftest import build_plan

N_PARAMS = 124_000_000
WALL = WallEstimate(seconds=exact(10_000.0, "test"), terms_seconds={"startup": 2_000.0, "steps": 8_000.0})
VALUE = ValueEstimate(
    tokens_per_param=20.0,
    n_epochs=None,
    expected_loss=Band(low=3.0, mid=3.1, high=3.4, source="test"),
    expected_loss_at_three_quarters=3.15,
    compute_optimal_tokens=20 * N_PARAMS,
)


def plan_of(**budget: float | None) -> RunPlan:
    """1,000 steps of 12,288 tokens at $3.60 an hour."""
    return build_plan(n_steps=1000, usd_per_hour=3.6, budget={"max_hours": None} | budget)


def worth_of(plan: RunPlan, value: ValueEstimate = VALUE) -> Worth:
    return estimate_worth(plan, N_PARAMS, WALL, estimate_cost(plan, WALL), value)


def test_last_quarter_is_a_quarter_of_what_the_steps_cost():
    """$10 in all, 80 % of it steps: $2 for 0.05 nats."""
    worth = worth_of(plan_of())
    assert worth.last_quarter_usd == pytest.approx(2.0)
    assert worth.last_quarter_loss == pytest.approx(0.05)


def test_no_limit_no_budget():
    worth = worth_of(plan_of())
    assert (worth.budget_tokens, worth.optimal_params, worth.optimal_tokens) == (None, None, None)


@pytest.mark.parametrize(
    ("budget", "n_steps"),
    [
        ({"max_hours": 5.0}, 2000),  # 18,000 s less 2,000 s of start-up, at 8 s a step
        ({"max_cost_usd": 6.0}, 500),  # $6 of $10: 6,000 s, 4,000 of them steps
        ({"max_hours": 5.0, "max_cost_usd": 6.0}, 500),  # the tighter one
        ({"max_hours": 0.5}, 0),  # not even the start-up
    ],
)
def test_budget_tokens_are_those_of_the_tightest_limit(budget: dict[str, float], n_steps: int):
    assert worth_of(plan_of(**budget)).budget_tokens == n_steps * 12_288


def test_best_size_spends_the_same_arithmetic_on_20_tokens_a_parameter():
    """C = 6 N D = 120 N*^2."""
    worth = worth_of(plan_of(max_hours=5.0))
    assert worth.optimal_params == pytest.approx(sqrt(N_PARAMS * 2000 * 12_288 / 20))
    assert worth.optimal_tokens == pytest.approx(20 * worth.optimal_params)
    arithmetic = 6 * N_PARAMS * 2000 * 12_288
    assert 6 * worth.optimal_params * worth.optimal_tokens == pytest.approx(arithmetic)


def test_what_nobody_knows_stays_unknown():
    plan = plan_of(max_hours=5.0)
    silent = replace(VALUE, expected_loss=None, expected_loss_at_three_quarters=None)
    assert worth_of(plan, silent).last_quarter_loss is None
    no_time = WallEstimate(seconds=None, terms_seconds={})
    cost: CostEstimate = estimate_cost(plan, no_time)
    worth = estimate_worth(plan, N_PARAMS, no_time, cost, estimate_value(plan))
    assert (worth.last_quarter_usd, worth.budget_tokens) == (None, None)
