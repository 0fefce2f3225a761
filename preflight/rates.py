"""What does an hour of this machine cost, in dollars and in watts? The bill and the running price of the trainer ask.

Watts at the wall: (cards x board power x utilisation + host) x PUE. Utilisation 0.8 of the board's limit is the middle
of what training draws (measured: 590 of 700 W on H100, 287 of 400 W on A100; range 0.65-0.95). A host whose power is
not known is taken as 12 % of its cards' (10-15 % in data centres). Not in it: cooling beyond PUE, storage, network.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from preflight.hw_plan import CardKind, HwPlan, Offer
from preflight.plan import NO_CALIBRATION, Calibration
from preflight.units import SECONDS_PER_HOUR, format_runs

POWER_UTILISATION = 0.8
HOST_PER_CARDS_WATTS = 0.12
WATTS_PER_KILOWATT = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What an hour costs. None: unknown."""

    usd_per_hour: float | None  # all nodes: rent, or electricity when owned
    watts: float | None  # all nodes, in training, at the wall (PUE included)
    basis: str  # one line: "runpod 4 x RTX 4090, $1.36/h, 2026-09-25" or "owned: electricity at ..."


def rates(hw: HwPlan, calibration: Calibration = NO_CALIBRATION) -> Rates:
    """Dollars an hour and watts of the whole machine."""
    watts, _ = watts_of(hw, calibration)
    usd_per_hour, basis = offer_rate(hw, hw.offer, watts)
    return Rates(usd_per_hour=usd_per_hour, watts=watts, basis=basis)


def watts_of(hw: HwPlan, calibration: Calibration = NO_CALIBRATION) -> tuple[float | None, str]:
    """All nodes at the wall, and where the number comes from."""
    node_watts, source = _node_watts(hw, calibration)
    if node_watts is None:
        return None, source
    return hw.n_nodes * node_watts * hw.electricity.pue, source


def _node_watts(hw: HwPlan, calibration: Calibration) -> tuple[float | None, str]:
    if hw.watts is not None:
        return hw.watts, "given"
    measured = calibration.factors.get("watts")
    if measured is not None:
        return measured.value, f"calibrated ({format_runs(measured.n_runs)})"
    if hw.card.watts is None:
        return None, "unknown: give hw.watts="
    n_boards = 1 if hw.card.kind is CardKind.cpu else hw.n_gpus_per_node
    cards_watts = n_boards * hw.card.watts * POWER_UTILISATION
    if hw.host_watts is not None:
        return cards_watts + hw.host_watts, f"{POWER_UTILISATION:.0%} of the board limit, and the host"
    return (1 + HOST_PER_CARDS_WATTS) * cards_watts, (
        f"{POWER_UTILISATION:.0%} of the board limit, host taken as {HOST_PER_CARDS_WATTS:.0%} of the cards"
    )


def billed_seconds(offer: Offer, seconds: float) -> float:
    """Every started increment is paid for, and a minimum; where the rules are unknown, the seconds as they are."""
    increment = offer.billing.increment_seconds
    if increment is None:
        return seconds
    return max(offer.billing.minimum_seconds, ceil(seconds / increment) * increment)


def spent_usd(hw: HwPlan, usd_per_hour: float | None, wall_seconds: float, measured_kwh: float | None) -> float | None:
    """What a run has cost: rent as it is billed; at home the joules that were counted, where they were."""
    if usd_per_hour is None:
        return None
    tariff = hw.electricity.usd_per_kwh
    if hw.offer.owned and measured_kwh is not None and tariff is not None:
        own_usd_per_hour = hw.n_nodes * (hw.offer.usd_per_hour or 0.0)
        return own_usd_per_hour * wall_seconds / SECONDS_PER_HOUR + measured_kwh * tariff
    return usd_per_hour * billed_seconds(hw.offer, wall_seconds) / SECONDS_PER_HOUR


def offer_rate(hw: HwPlan, offer: Offer, watts: float | None) -> tuple[float | None, str]:
    """Dollars an hour of all nodes by one offer, with its basis in one line."""
    if not offer.owned:
        nodes = f"{hw.n_nodes} x " if hw.n_nodes > 1 else ""
        name = f"{'spot: ' if offer.interruptions is not None else ''}{offer.provider} {nodes}{offer.instance}"
        if offer.usd_per_hour is None:
            return None, f"{name}, price unknown"
        return hw.n_nodes * offer.usd_per_hour, f"{name}, ${hw.n_nodes * offer.usd_per_hour:.2f}/h, {offer.as_of}"
    tariff = hw.electricity
    if tariff.usd_per_kwh is None:
        return None, f"owned: electricity tariff of {tariff.country} unknown"
    at = f"owned: electricity at ${tariff.usd_per_kwh:.3f}/kWh ({tariff.country}, {tariff.as_of})"
    if watts is None:
        return None, f"{at}, watts unknown"
    own = hw.n_nodes * (offer.usd_per_hour or 0.0)  # 0, or the user's own amortisation an hour
    beside = f", and ${own:.3g}/h: {offer.source}" if own else ""
    return own + watts / WATTS_PER_KILOWATT * tariff.usd_per_kwh, f"{at}, {watts:,.0f} W{beside}"
