"""Money, energy and CO2 of a wall time, worked by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.choices import Currency
from preflight.band import Band, exact
from preflight.cost import CostEstimate, estimate_cost
from preflight.duration import WallEstimate, estimate_wall
from preflight.hw_plan import Billing, Offer
from preflight.money import format_money
from preflight.plan import Money, RunPlan
from preflight.step_time.step import estimate_step_time
from tests.conftest import build_plan

TEN_HOURS = WallEstimate(
    seconds=Band(low=9 * 3600.0, mid=10 * 3600.0, high=14 * 3600.0, source="test"), terms_seconds={"steps": 36000.0}
)
OWNED = Offer(provider="owned", instance="desk", usd_per_hour=0.0, as_of="2026-11-30", source="", owned=True)


def owned(plan: RunPlan, watts: float | None, usd_per_kwh: float | None) -> RunPlan:
    place = replace(plan.hw.electricity, usd_per_kwh=usd_per_kwh, g_co2_per_kwh=582.3)
    return replace(plan, hw=replace(plan.hw, offer=OWNED, watts=watts, electricity=place))


def test_450_watts_for_ten_hours_are_4_and_a_half_kwh_and_3_yuan_60() -> None:
    """0.8 CNY a kWh; the tariff's currency passes through, so 0.8 in gives 3.6 out."""
    cost = estimate_cost(owned(build_plan(), 450.0, 0.8), TEN_HOURS)
    assert cost.energy_kwh is not None
    assert cost.cost_usd is not None
    assert cost.co2_kg is not None
    assert cost.energy_kwh.mid == pytest.approx(4.5)
    assert cost.cost_usd.mid == pytest.approx(3.6)
    assert cost.co2_kg.mid == pytest.approx(4.5 * 0.5823)


def test_rent_is_hours_times_price_and_keeps_the_band() -> None:
    cost = estimate_cost(build_plan(n_gpus=4, usd_per_hour=1.36), TEN_HOURS).cost_usd
    assert cost is not None
    assert (cost.low, cost.mid, cost.high) == pytest.approx((12.24, 13.6, 19.04))


def test_energy_of_listed_watts_is_less_sure_than_of_given_ones() -> None:
    listed = estimate_cost(build_plan(), TEN_HOURS).energy_kwh
    given_watts = estimate_cost(owned(build_plan(), 400.0, None), TEN_HOURS).energy_kwh
    assert listed is not None
    assert given_watts is not None
    assert listed.high / listed.mid > given_watts.high / given_watts.mid == pytest.approx(1.4)


def test_unknown_stays_unknown() -> None:
    on_cpu = estimate_cost(build_plan(card="cpu"), TEN_HOURS)
    assert on_cpu.cost_usd is None
    assert on_cpu.energy_kwh is None
    assert on_cpu.co2_kg is None
    no_time = estimate_cost(build_plan(), WallEstimate(seconds=None, terms_seconds={}))
    assert no_time.cost_usd is None
    assert no_time.energy_kwh is None
    assert no_time.rates.usd_per_hour == 1.36
    assert estimate_cost(build_plan(usd_per_hour=None), TEN_HOURS).cost_usd is None
    assert estimate_cost(owned(build_plan(), 450.0, None), TEN_HOURS).cost_usd is None


def test_the_other_reading_of_the_money_stands_beside() -> None:
    plan = build_plan(usd_per_hour=0.34)
    plan = replace(plan, hw=replace(plan.hw, alternative=OWNED, watts=450.0))
    cost = estimate_cost(plan, TEN_HOURS)
    assert cost.alternative_usd == pytest.approx(4.5 * 0.167)
    assert "electricity" in cost.alternative
    home = replace(plan, hw=replace(plan.hw, offer=OWNED, alternative=plan.hw.offer))
    assert estimate_cost(home, TEN_HOURS).alternative_usd == pytest.approx(3.4)
    assert "runpod" in estimate_cost(home, TEN_HOURS).alternative
    assert estimate_cost(build_plan(), TEN_HOURS).alternative == ""


def bill_of(plan: RunPlan) -> CostEstimate:
    return estimate_cost(plan, estimate_wall(plan, estimate_step_time(plan), 1_500_000_000))


@given(fewer=st.integers(1, 20_000), more=st.integers(1, 20_000))
@settings(max_examples=30, deadline=None)
def test_fewer_tokens_are_never_dearer(fewer: int, more: int) -> None:
    intervals = {"eval_interval": 250, "checkpoint_interval": 1000}
    cheap, dear = (bill_of(build_plan(n_steps=n, trainer=intervals)) for n in (fewer, fewer + more))
    assert cheap.cost_usd is not None
    assert dear.cost_usd is not None
    assert cheap.cost_usd.mid < dear.cost_usd.mid
    assert cheap.energy_kwh is not None
    assert dear.energy_kwh is not None
    assert cheap.energy_kwh.mid < dear.energy_kwh.mid


def test_owned_reading_of_a_rented_machine_has_no_data_centre_around_it(make_plan):
    rented = make_plan(n_steps=1000)
    own = replace(rented.hw.offer, owned=True, usd_per_hour=0.0, provider="owned")
    data_centre = replace(rented.hw.electricity, pue=1.58)
    plan = replace(rented, hw=replace(rented.hw, alternative=own, electricity=data_centre))
    wall = WallEstimate(seconds=exact(36_000.0, "given"), terms_seconds={"steps": 36_000.0})
    watts = 450 * 0.8 * 1.12  # host taken as 12 % of the card
    assert estimate_cost(plan, wall).alternative_usd == pytest.approx(10 * watts / 1000 * 0.167)


def rounded_by(increment_seconds: float | None, minimum_seconds: float = 0.0) -> RunPlan:
    """$3.60 an hour: a thousandth of a dollar a second."""
    plan = build_plan(usd_per_hour=3.6)
    billing = Billing(increment_seconds=increment_seconds, minimum_seconds=minimum_seconds, source="test", as_of="")
    return replace(plan, hw=replace(plan.hw, offer=replace(plan.hw.offer, billing=billing)))


@pytest.mark.parametrize(
    ("increment_seconds", "minimum_seconds", "seconds", "usd"),
    [
        (None, 0.0, 90.5, 0.0905),  # nobody knows how it rounds: as it is
        (1.0, 0.0, 90.5, 0.091),
        (60.0, 0.0, 90.5, 0.120),
        (60.0, 0.0, 120.0, 0.120),
        (3600.0, 0.0, 90.5, 3.6),
        (3600.0, 0.0, 3601.0, 7.2),
        (1.0, 60.0, 12.2, 0.060),  # a minute at least
    ],
)
def test_started_increments_are_paid_for(
    increment_seconds: float | None, minimum_seconds: float, seconds: float, usd: float
) -> None:
    wall = WallEstimate(seconds=exact(seconds, "test"), terms_seconds={"steps": seconds})
    cost = estimate_cost(rounded_by(increment_seconds, minimum_seconds), wall).cost_usd
    assert cost is not None
    assert cost.mid == pytest.approx(usd)


def test_purchase_is_written_off_over_the_hours_of_its_life() -> None:
    """$1,600 over 4 years of 2,000 h: 20 cents an hour beside the electricity of 450 W."""
    plan = owned(build_plan(), 450.0, 0.2)
    share = replace(plan.hw.offer, usd_per_hour=0.2, source="purchase of $1,600 over 4 years of 2,000 h")
    cost = estimate_cost(replace(plan, hw=replace(plan.hw, offer=share)), TEN_HOURS)
    assert cost.cost_usd is not None
    assert cost.cost_usd.mid == pytest.approx(10 * 0.2 + 4.5 * 0.2)
    assert "purchase of $1,600 over 4 years of 2,000 h" in cost.rates.basis


def test_the_same_ten_hours_shown_in_yuan() -> None:
    """0.8 CNY a kWh at 7 CNY a dollar: 4.5 kWh are 3.60 yuan, whatever the rate was."""
    yuan = Money(currency=Currency.cny, per_usd=7.0, symbol="¥", source="test", as_of="2026-01-08")
    cost = estimate_cost(owned(build_plan(), 450.0, 0.8 / 7.0), TEN_HOURS).cost_usd
    assert cost is not None
    assert format_money(cost.mid, yuan) == "¥3.60"
