"""Which budgets are used up, and which will be broken for sure? The plan's limits held against what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from preflight.band import Band
from preflight.money import format_money
from preflight.plan import BudgetPlan
from preflight.units import SECONDS_PER_HOUR, format_hours, format_kwh
from trainers.forecast import Forecast, Spending


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One budget, in its own unit."""

    name: str  # max_hours
    given: str  # budget.max_hours=24
    limit: float
    used: float
    expected: Band | None  # at the end of the run; None: too early to say, or unknown
    say: Callable[[float], str]

    @property
    def is_used_up(self) -> bool:
        """Nothing is left."""
        return self.used >= self.limit

    def will_break(self, recent_over_mean: float = 1.0) -> bool:
        """Even the low edge is above the limit, also if the rest goes as fast as the last steps did."""
        if self.expected is None:
            return False
        return self.used + min(1.0, recent_over_mean) * (self.expected.low - self.used) > self.limit

    @property
    def may_break(self) -> bool:
        """The middle is above the limit."""
        return self.expected is not None and self.expected.mid > self.limit

    @property
    def used_up_text(self) -> str:
        """What has happened."""
        if self.name == "deadline":
            return f"{self.given} has come"
        return f"{self.given} is used up: {self.say(self.used)}"

    @property
    def expected_text(self) -> str:
        """What will happen."""
        if self.expected is None:
            return ""
        low, mid, high = (self.say(edge) for edge in (self.expected.low, self.expected.mid, self.expected.high))
        if self.name == "deadline":
            return f"the run takes {mid} more ({low} to {high}), {self.given} is in {self.say(self.limit)}"
        return f"the run takes {mid} ({low} to {high}) of {self.given}"

    @property
    def remedy(self) -> str:
        """The override with which a resumed run goes on."""
        if self.name == "deadline":
            return "budget.deadline=null"
        if self.expected is None:
            return f"budget.{self.name}=null"
        need = max(self.used, self.expected.high, self.limit)
        return f"budget.{self.name}={rounded_up(1.05 * need):.12g}"


def uses(budget: BudgetPlan, spending: Spending, forecast: Forecast | None, now_unix: float) -> list[Use]:
    """Every budget of time, money and energy that has a limit and can be measured."""
    per_hour = 1.0 / SECONDS_PER_HOUR
    wall = None if forecast is None else forecast.wall_seconds.scaled(per_hour)
    found = []
    if budget.max_hours is not None:
        found.append(_use("max_hours", budget.max_hours, spending.wall_seconds * per_hour, wall, format_hours))
    if budget.max_cost_usd is not None and spending.cost_usd is not None:
        cost = None if forecast is None else forecast.cost_usd
        found.append(_use("max_cost_usd", budget.max_cost_usd, spending.cost_usd, cost, _money(budget)))
    if budget.max_energy_kwh is not None and spending.energy_kwh is not None:
        energy = None if forecast is None else forecast.energy_kwh
        found.append(_use("max_energy_kwh", budget.max_energy_kwh, spending.energy_kwh, energy, format_kwh))
    if budget.deadline_unix_seconds is not None:
        left = (budget.deadline_unix_seconds - now_unix) * per_hour
        more = None if forecast is None else forecast.remaining_seconds.scaled(per_hour)
        given = f"budget.deadline={budget.deadline}"
        found.append(Use(name="deadline", given=given, limit=left, used=0.0, expected=more, say=format_hours))
    return found


def _use(name: str, limit: float, used: float, expected: Band | None, say: Callable[[float], str]) -> Use:
    return Use(name=name, given=f"budget.{name}={limit:g}", limit=limit, used=used, expected=expected, say=say)


def _money(budget: BudgetPlan) -> Callable[[float], str]:
    return lambda usd: format_money(usd, budget.money)


def rounded_up(value: float) -> float:
    """To two digits, never below."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit) * unit:.3g}")
