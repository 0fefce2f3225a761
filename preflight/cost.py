"""Money, energy and CO2 of a wall time."""

from __future__ import annotations

from dataclasses import dataclass

from preflight.band import Band
from preflight.duration import WallEstimate
from preflight.plan import HwPlan, RunPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What an hour costs. None: unknown."""

    usd_per_hour: float | None  # all nodes: rent, or electricity when owned
    watts: float | None  # all nodes, in training, at the wall (PUE included)
    basis: str  # one line: "runpod 4 x RTX 4090, $1.36/h, 2026-09-25" or "owned: electricity at ..."


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """None: unknown."""

    cost_usd: Band | None
    energy_kwh: Band | None
    co2_kg: Band | None
    rates: Rates
    alternative: str  # the other reading of the money in one line, "" when there is none
    alternative_usd: float | None


def rates(hw: HwPlan, precision_watts: float | None = None) -> Rates:
    """Dollars an hour and watts of the whole machine."""
    raise NotImplementedError


def estimate_cost(plan: RunPlan, wall: WallEstimate) -> CostEstimate:
    """Billed hours times price, watts times hours."""
    raise NotImplementedError
