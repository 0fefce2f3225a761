"""The working of money, energy and value in `report=full`: rates, rounding, restarts, the loss law and its range."""

from __future__ import annotations

from preflight.bill import Bill
from preflight.hw_plan import Offer
from preflight.money import format_money, rate_words
from preflight.report.words import UNKNOWN, folded, kwh_with_band, tuned_words
from preflight.units import SECONDS_PER_MINUTE, format_count, format_seconds
from preflight.value import FITTED_PARAMS, FITTED_TOKENS

INDENT = "  "
NAME_WIDTH = 34


def row(name: str, value: str, beside: str = "") -> str:
    """A name, a number, and what belongs to it."""
    return f"{INDENT}{name.replace('_', ' '):<{NAME_WIDTH}}{value:>14}{beside:>8}".rstrip()


def money_section(bill: Bill) -> list[str]:
    """Hours become money by the offer's rules, watts by the tariff's."""
    cost, money, hw = bill.estimate.cost, bill.plan.budget.money, bill.plan.hw
    rates = cost.rates
    lines = ["Money and energy"]
    lines.append(row("an hour", UNKNOWN if rates.usd_per_hour is None else f"${rates.usd_per_hour:,.4g}"))
    if rate_words(money):
        lines.append(folded(f"{INDENT}currency", f"{rate_words(money)}: {money.source}"))
    lines += _rounding_lines(hw.offer) + _spot_lines(hw.offer)
    lines.append(row("power in training, at the wall", UNKNOWN if rates.watts is None else f"{rates.watts:,.0f} W"))
    if cost.energy_kwh is not None:
        source = f"[{cost.energy_kwh.source}; PUE {hw.electricity.pue:g}]"
        lines.append(folded(f"{INDENT}energy", f"{kwh_with_band(cost.energy_kwh)}   {source}"))
    lines.append(row("CO2", UNKNOWN if cost.co2_kg is None else f"{cost.co2_kg.mid:,.3g} kg"))
    return lines


def _rounding_lines(offer: Offer) -> list[str]:
    if offer.owned or offer.usd_per_hour is None:
        return []
    rule = offer.billing
    if rule.increment_seconds is None:
        return [folded(f"{INDENT}rounding", f"unknown how {offer.provider} rounds hours: nothing is rounded")]
    unit = "second" if rule.increment_seconds == 1 else format_seconds(rule.increment_seconds)
    least = f", {rule.minimum_seconds / SECONDS_PER_MINUTE:g} min at least" if rule.minimum_seconds else ""
    return [folded(f"{INDENT}rounding", f"every started {unit}{least}: {rule.source}, {rule.as_of}")]


def _spot_lines(offer: Offer) -> list[str]:
    spot = offer.interruptions
    if spot is None:
        return []
    rates = " to ".join(f"{rate:.2g}" for rate in (spot.low_per_hour, spot.high_per_hour))
    text = (
        f"a node is taken away {spot.mid_per_hour:.2g} times an hour ({rates}): {spot.source}, {spot.as_of}; each time "
        "half a checkpoint interval is lost and the start is made again; waiting for a machine is not counted"
    )
    return [folded(f"{INDENT}spot", text)]


def value_section(bill: Bill) -> list[str]:
    """What the tokens and the last of the money are worth."""
    value, worth, money = bill.estimate.value, bill.estimate.worth, bill.plan.budget.money
    lines = ["Value"]
    if value.n_tuned_params is not None:
        lines.append(folded(f"{INDENT}fine-tuned", tuned_words(value.n_tuned_params, bill.estimate.n_params)))
    if value.compute_optimal_tokens is not None:
        lines.append(row("tokens a parameter", f"{value.tokens_per_param:,.3g}"))
        lines.append(row("compute-optimal tokens (20 each)", format_count(value.compute_optimal_tokens)))
    lines.append(row("epochs over the data", UNKNOWN if value.n_epochs is None else f"{value.n_epochs:,.3g}"))
    if value.expected_loss is None:
        lines.append(row("expected loss", UNKNOWN))
    else:
        loss = value.expected_loss
        band = f"  ({loss.low:.2f}-{loss.high:.2f}) [{loss.source}]"
        lines.append(row("expected loss, nats a token", f"{loss.mid:.3f}", band))
    lines.append(folded(f"{INDENT}the law holds", _range_words()))
    if worth.last_quarter_loss is not None:
        price = "" if worth.last_quarter_usd is None else f"  for {format_money(worth.last_quarter_usd, money)}"
        lines.append(row("the last quarter takes off", f"{worth.last_quarter_loss:.3f}", price))
    elif worth.last_quarter_usd is not None:
        lines.append(row("the last quarter costs", format_money(worth.last_quarter_usd, money)))
    if worth.budget_tokens is not None:
        lines.append(row("tokens within the budgets", format_count(worth.budget_tokens)))
    if worth.optimal_params is not None and worth.optimal_tokens is not None:
        best = f"{format_count(worth.optimal_params)} parameters on {format_count(worth.optimal_tokens)} tokens"
        lines.append(folded(f"{INDENT}that arithmetic is best spent on", best))
    return lines


def _range_words() -> str:
    params = " to ".join(format_count(n) for n in FITTED_PARAMS)
    tokens = " to ".join(format_count(n) for n in FITTED_TOKENS)
    return f"for BPE models of {params} parameters from scratch, on {tokens} tokens of web text; else it is unknown"
