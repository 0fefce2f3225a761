"""What does the last quarter of the money buy, and what would the whole budget best be spent on?

The budget's tokens are those of this plan whose steps still fit the tightest of the limits on hours, money and energy;
what is paid for besides steps is taken as it is. Compute-optimal at the same arithmetic C = 6 N D is N = sqrt(C / 120)
with 20 tokens a parameter (Hoffmann et al. 2022, arXiv:2203.15556), as if another size ran equally efficiently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

from preflight.cost import CostEstimate
from preflight.duration import WallEstimate
from preflight.plan import RunPlan
from preflight.units import SECONDS_PER_HOUR
from preflight.value import COMPUTE_OPTIMAL_TOKENS_PER_PARAM, ValueEstimate

QUARTER = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """None: unknown, or there is no limit."""

    last_quarter_usd: float | None  # of the steps
    last_quarter_loss: float | None  # nats per token that it takes off the expected loss
    budget_tokens: int | None  # that this plan could see within its budgets
    optimal_params: float | None  # with the budget's arithmetic
    optimal_tokens: float | None


def estimate_worth(plan: RunPlan, n_params: int, wall: WallEstimate, cost: CostEstimate, value: ValueEstimate) -> Worth:
    """From what the other estimates say."""
    budget_tokens = _budget_tokens(plan, wall, cost)
    is_known = budget_tokens is not None and value.compute_optimal_tokens is not None
    optimal_params = _optimal_params(n_params, budget_tokens or 0) if is_known else None
    loss, before = value.expected_loss, value.expected_loss_at_three_quarters
    return Worth(
        last_quarter_usd=_last_quarter_usd(wall, cost),
        last_quarter_loss=None if loss is None or before is None else before - loss.mid,
        budget_tokens=budget_tokens,
        optimal_params=optimal_params,
        optimal_tokens=None if optimal_params is None else COMPUTE_OPTIMAL_TOKENS_PER_PARAM * optimal_params,
    )


def _last_quarter_usd(wall: WallEstimate, cost: CostEstimate) -> float | None:
    if wall.seconds is None or cost.cost_usd is None or wall.seconds.mid <= 0:
        return None
    return QUARTER * wall.terms_seconds["steps"] / wall.seconds.mid * cost.cost_usd.mid


def _budget_tokens(plan: RunPlan, wall: WallEstimate, cost: CostEstimate) -> int | None:
    if wall.seconds is None or wall.seconds.mid <= 0:
        return None
    seconds = list(_limits_seconds(plan, wall.seconds.mid, cost))
    steps_seconds = wall.terms_seconds["steps"]
    if not seconds or steps_seconds <= 0:
        return None
    besides = wall.seconds.mid - steps_seconds
    n_steps = int(max(0.0, min(seconds) - besides) / steps_seconds * plan.trainer.n_steps)
    return n_steps * plan.trainer.tokens_per_step


def _limits_seconds(plan: RunPlan, wall_seconds: float, cost: CostEstimate) -> Iterator[float]:
    """Each limit as the wall time that would just keep it."""
    budget = plan.budget
    if budget.max_hours is not None:
        yield budget.max_hours * SECONDS_PER_HOUR
    for limit, band in ((budget.max_cost_usd, cost.cost_usd), (budget.max_energy_kwh, cost.energy_kwh)):
        if limit is not None and band is not None and band.mid > 0:
            yield limit / band.mid * wall_seconds


def _optimal_params(n_params: int, n_tokens: int) -> float:
    return sqrt(n_params * n_tokens / COMPUTE_OPTIMAL_TOKENS_PER_PARAM)
