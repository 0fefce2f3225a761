"""What an hour costs: rent, electricity, watts, each worked by hand."""

from dataclasses import replace

import pytest

from preflight.hw_plan import Billing, HwPlan, Offer
from preflight.plan import Calibration, Factor
from preflight.rates import rates, spent_usd, watts_of
from tests.conftest import build_plan

OWNED = Offer(provider="owned", instance="desk", usd_per_hour=0.0, as_of="2026-11-30", source="", owned=True)


def desk(watts: float | None = 450.0, **fields: object) -> HwPlan:
    return replace(build_plan(card="4090").hw, offer=OWNED, watts=watts, **fields)


def test_rent_counts_every_node() -> None:
    hourly = rates(build_plan(card="4090", n_gpus=4, n_nodes=2, usd_per_hour=1.36).hw)
    assert hourly.usd_per_hour == pytest.approx(2.72)
    assert "runpod" in hourly.basis
    assert "$2.72/h" in hourly.basis
    assert "2026-11-01" in hourly.basis


def test_unknown_price_is_unknown() -> None:
    hourly = rates(build_plan(usd_per_hour=None).hw)
    assert hourly.usd_per_hour is None
    assert "unknown" in hourly.basis


def test_board_power_is_used_to_80_percent_and_the_host_comes_on_top() -> None:
    hw = build_plan(card="4090", n_gpus=4).hw
    assert rates(hw).watts == pytest.approx(4 * 450 * 0.8 * 1.12)
    assert rates(replace(hw, host_watts=200.0)).watts == pytest.approx(4 * 450 * 0.8 + 200)


def test_facility_overhead_multiplies_all_nodes() -> None:
    hw = build_plan(card="4090", n_gpus=2, n_nodes=3).hw
    hw = replace(hw, host_watts=100.0, electricity=replace(hw.electricity, pue=1.5))
    assert rates(hw).watts == pytest.approx(3 * (2 * 450 * 0.8 + 100) * 1.5)


def test_given_watts_win_over_measured_and_measured_over_listed() -> None:
    factor = Factor(value=300.0, low=280.0, high=320.0, n_runs=2, scope="same machine")
    calibration = Calibration(n_runs=2, factors={"watts": factor}, ledger_sha256="")
    assert watts_of(desk(watts=None), calibration)[0] == 300.0
    assert watts_of(desk(watts=450.0), calibration)[0] == 450.0


def test_cpu_watts_are_unknown_until_given() -> None:
    hw = build_plan(card="cpu").hw
    assert rates(hw).watts is None
    assert rates(hw).usd_per_hour is None
    assert rates(replace(hw, watts=65.0)).watts == 65.0


def test_owned_hours_cost_their_electricity() -> None:
    hw = desk(watts=450.0)
    assert rates(hw).usd_per_hour == pytest.approx(0.45 * 0.167)
    assert "electricity" in rates(hw).basis


def test_owned_hours_can_carry_an_amortisation() -> None:
    hw = desk(watts=450.0)
    hw = replace(hw, offer=replace(OWNED, usd_per_hour=0.10))
    assert rates(hw).usd_per_hour == pytest.approx(0.10 + 0.45 * 0.167)


def test_unknown_tariff_is_unknown_money() -> None:
    hw = desk(watts=450.0)
    assert rates(replace(hw, electricity=replace(hw.electricity, usd_per_kwh=None))).usd_per_hour is None


def test_rented_hours_have_cost_what_is_billed_and_owned_ones_what_was_counted():
    """90.5 s at $3.60 an hour by the minute: 12 cents; 4.5 kWh at 0.8: 3.60, and 10 h of 20 cents of the purchase."""
    rented = build_plan(usd_per_hour=3.6).hw
    rented = replace(rented, offer=replace(rented.offer, billing=Billing(increment_seconds=60.0)))
    assert spent_usd(rented, 3.6, 90.5, None) == pytest.approx(0.12)
    assert spent_usd(rented, 3.6, 90.5, 4.5) == pytest.approx(0.12)
    place = replace(rented.electricity, usd_per_kwh=0.8)
    owned = replace(rented, offer=replace(rented.offer, owned=True, usd_per_hour=0.2), electricity=place)
    owned = replace(owned, offer=replace(owned.offer, billing=Billing()))
    assert spent_usd(owned, 9.9, 36_000.0, 4.5) == pytest.approx(3.6 + 2.0)
    assert spent_usd(owned, 9.9, 36_000.0, None) == pytest.approx(99.0)
    assert spent_usd(rented, None, 36_000.0, 4.5) is None
