"""Who sells the machine of a plan and for how much: the catalog's cheapest, the user's own price, or nobody (owned)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conf.schema import HwConfig
from preflight import catalog
from preflight.hw_plan import Billing, Card, Interruptions, Offer
from preflight.providers import given_interruptions, interruptions
from preflight.resolve.resolution import Resolution


def rented_offer(hw: HwConfig, card: Card, n_gpus: int, today: str) -> Offer | None:
    """The cheapest current one, on demand or spot; None: nobody sells that count."""
    offer = catalog.cheapest_offer(card, n_gpus, is_spot=hw.spot)
    if offer is None or not hw.spot or hw.interruptions_per_day is None:
        return offer
    return replace(offer, interruptions=_interruptions(hw, offer.provider, today))


def _interruptions(hw: HwConfig, provider: str, today: str) -> Interruptions | None:
    if not hw.spot:
        return None
    per_day = hw.interruptions_per_day
    return interruptions(provider) if per_day is None else given_interruptions(per_day, today)


def own_offer(hw: HwConfig, hostname: str, today: str) -> Offer:
    """Electricity is apart; the hours carry their share of the purchase when it is known."""
    usd_per_hour, source = 0.0, ""
    if hw.purchase_usd is not None:
        usd_per_hour = hw.purchase_usd / (hw.lifetime_years * hw.hours_per_year)
        source = f"purchase of ${hw.purchase_usd:,.0f} over {hw.lifetime_years:g} years of {hw.hours_per_year:,.0f} h"
    return Offer(provider="owned", instance=hostname, usd_per_hour=usd_per_hour, as_of=today, source=source, owned=True)


def given_price(hw: HwConfig, instance: str, today: str, *, owned: bool) -> dict[str, Any]:
    """The fields of an offer that hw.price_usd_per_hour decides; how that price is rounded nobody said."""
    return {
        "provider": "owned" if owned else "your price",
        "instance": instance,
        "usd_per_hour": hw.price_usd_per_hour,
        "as_of": today,
        "source": "hw.price_usd_per_hour",
        "owned": owned,
        "billing": Billing(),
        "interruptions": _interruptions(hw, "your price", today),
    }


def unknown_offer(hw: HwConfig, card: Card, n_gpus: int, today: str) -> Offer:
    """Nobody that is listed."""
    return Offer(
        provider="nobody known rents out",
        instance=f"{n_gpus} x {card.label}",
        usd_per_hour=None,
        as_of="",
        source="",
        owned=False,
        interruptions=_interruptions(hw, "nobody", today),
    )


def check_offer(hw: HwConfig, resolution: Resolution, *, owned: bool) -> None:
    """Options that contradict each other."""
    if hw.spot and owned:
        message = "an owned machine is not taken away by its seller"
        resolution.refuse("hw.spot", hw.spot, message, "hw.owned=false, or leave out hw.spot")
    if hw.interruptions_per_day is not None and not hw.spot:
        message = "has no effect on a machine that nobody takes away"
        resolution.refuse("hw.interruptions_per_day", hw.interruptions_per_day, message, "hw.spot=true")
    usual = HwConfig(card=hw.card)
    for name in ("lifetime_years", "hours_per_year"):
        if hw.purchase_usd is None and getattr(hw, name) != getattr(usual, name):
            message = "has no effect without hw.purchase_usd"
            resolution.refuse(f"hw.{name}", getattr(hw, name), message, "hw.purchase_usd=1600")
    if hw.purchase_usd is not None and hw.price_usd_per_hour is not None:
        message = "is a second price beside hw.price_usd_per_hour"
        resolution.refuse("hw.purchase_usd", hw.purchase_usd, message, "hw.price_usd_per_hour=null")
