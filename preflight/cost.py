"""What does the wall time cost in money, energy and CO2?

Rented: every hour from the first import to the last byte written is billed, on every node, rounded up as the provider
does. Owned: electricity, at the tariff of the place, and the hours' share of the purchase when it was given. CO2 is
location-based: the grid's average intensity. Left out: storage, egress, idle time before and after.
"""

from __future__ import annotations

from dataclasses import dataclass

from preflight.band import Band
from preflight.duration import WallEstimate
from preflight.money import format_money
from preflight.plan import RunPlan
from preflight.rates import WATTS_PER_KILOWATT, Rates, billed_seconds, offer_rate, rates, watts_of
from preflight.units import SECONDS_PER_HOUR

GRAMS_PER_KG = 1000.0
# Power in training is 0.65-0.95 of the board's limit around a mid of 0.8, unless it was measured or given.
LOW_WATTS_FACTOR = 0.81
HIGH_WATTS_FACTOR = 1.19


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """None: unknown."""

    cost_usd: Band | None
    energy_kwh: Band | None
    co2_kg: Band | None
    rates: Rates
    alternative: str  # the other reading of the money in one line, "" when there is none
    alternative_usd: float | None


def estimate_cost(plan: RunPlan, wall: WallEstimate) -> CostEstimate:
    """Billed hours times price, watts times hours."""
    hourly = rates(plan.hw, plan.calibration)
    energy = _energy_kwh(plan, wall, hourly.watts)
    alternative_usd, alternative = _alternative(plan, wall, hourly.watts)
    return CostEstimate(
        cost_usd=_cost_usd(plan, wall, hourly, energy),
        energy_kwh=energy,
        co2_kg=_co2_kg(plan, energy),
        rates=hourly,
        alternative=alternative,
        alternative_usd=alternative_usd,
    )


def _energy_kwh(plan: RunPlan, wall: WallEstimate, watts: float | None) -> Band | None:
    if wall.seconds is None or watts is None:
        return None
    _, source = watts_of(plan.hw, plan.calibration)
    is_prior = plan.hw.watts is None and "watts" not in plan.calibration.factors
    low, high = (LOW_WATTS_FACTOR, HIGH_WATTS_FACTOR) if is_prior else (1.0, 1.0)
    kwh = wall.seconds.scaled(watts / WATTS_PER_KILOWATT / SECONDS_PER_HOUR)
    return Band(low=kwh.low * low, mid=kwh.mid, high=kwh.high * high, source=f"{watts:,.0f} W: {source}")


def _cost_usd(plan: RunPlan, wall: WallEstimate, hourly: Rates, energy: Band | None) -> Band | None:
    if wall.seconds is None or hourly.usd_per_hour is None:
        return None
    if not plan.hw.offer.owned or energy is None:
        low, mid, high = (
            billed_seconds(plan.hw.offer, seconds) / SECONDS_PER_HOUR * hourly.usd_per_hour
            for seconds in (wall.seconds.low, wall.seconds.mid, wall.seconds.high)
        )
        return Band(low=low, mid=mid, high=high, source=hourly.basis)
    tariff = plan.hw.electricity.usd_per_kwh or 0.0  # known: hourly.usd_per_hour rests on it
    amortisation = wall.seconds.scaled(plan.hw.n_nodes * (plan.hw.offer.usd_per_hour or 0.0) / SECONDS_PER_HOUR)
    return Band(
        low=amortisation.low + energy.low * tariff,
        mid=amortisation.mid + energy.mid * tariff,
        high=amortisation.high + energy.high * tariff,
        source=hourly.basis,
    )


def _co2_kg(plan: RunPlan, energy: Band | None) -> Band | None:
    intensity = plan.hw.electricity.g_co2_per_kwh
    if energy is None or intensity is None:
        return None
    return energy.scaled(intensity / GRAMS_PER_KG)


def _alternative(plan: RunPlan, wall: WallEstimate, watts: float | None) -> tuple[float | None, str]:
    """What the same hours would cost by the other reading: rented instead of owned, or the reverse."""
    if plan.hw.alternative is None or wall.seconds is None:
        return None, ""
    if plan.hw.alternative.owned and watts is not None:
        watts /= plan.hw.electricity.pue  # that is the data centre's; at one's desk there is none
    usd_per_hour, basis = offer_rate(plan.hw, plan.hw.alternative, watts)
    if usd_per_hour is None:
        return None, ""
    usd = billed_seconds(plan.hw.alternative, wall.seconds.mid) / SECONDS_PER_HOUR * usd_per_hour
    shown = format_money(usd, plan.budget.money)
    if plan.hw.alternative.owned:
        return usd, f"or {shown} if {basis}"
    return usd, f"or {shown} rented from {basis}"
