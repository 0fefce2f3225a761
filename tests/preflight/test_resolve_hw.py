from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resolving import LAPTOP, RTX_4090, problem_of, resolved, under_torchrun, with_gpus

from preflight import catalog
from preflight.errors import WrongMachine
from preflight.hw_plan import CardKind
from preflight.units import GIB, MIB


def test_auto_is_the_cpu_where_there_is_nothing_else():
    hw = resolved().hw
    assert (hw.card.kind, hw.world_size, hw.declared, hw.detected) == (CardKind.cpu, 1, "auto", True)
    assert (hw.host_memory_bytes, hw.n_cpu_cores) == (16 * GIB, 2)


def test_auto_is_all_the_cards_that_are_here():
    hw = resolved("model=gpt2_124m", machine=with_gpus(RTX_4090, RTX_4090)).hw
    assert (hw.card.name, hw.n_gpus_per_node, hw.detected) == ("4090", 2, True)
    assert hw.card.watts == 400  # the limit that is set, not the catalog's 450


def test_auto_is_the_apple_gpu_where_there_is_one():
    hw = resolved(machine=replace(LAPTOP, apple_gpu="Apple M9", platform="darwin")).hw
    assert (hw.card.kind, hw.card.memory_bytes) == (CardKind.mps, 16 * GIB)


def test_named_card_is_the_catalogs_wherever_it_is_asked_for():
    here = resolved("model=gpt2_124m", "hw=4x4090", machine=with_gpus(*[RTX_4090] * 4)).hw
    elsewhere = resolved("model=gpt2_124m", "hw=4x4090").hw
    assert here.card == elsewhere.card == catalog.find_card("4090")
    assert here.offer == elsewhere.offer
    assert (elsewhere.detected, elsewhere.n_cpu_cores) == (False, None)


def test_bare_name_is_one_card():
    hw = resolved("hw=4090").hw
    assert (hw.n_nodes, hw.n_gpus_per_node, hw.declared) == (1, 1, "4090")


@pytest.mark.parametrize(
    "asked",
    ["4x4090", "1x4090", "2x8xh100", "2x1xh100", "2xcpu", "auto", "4090"],
)
def test_declared_is_what_was_asked_for(asked):
    assert resolved("model=gpt2_124m", "data=stdlib", f"hw={asked}").hw.declared == asked


def test_ambiguous_name_takes_the_commonest_card_and_says_so():
    origins = resolved("hw=v100").provenance
    assert origins["hw.card"].startswith("given: v100 fits several cards; taken is the commonest, V100 SXM2 16 GB")
    assert "taken is the commonest, H100 SXM5 80 GB" in resolved("hw=2x8xh100").provenance["hw.card"]
    for whole in ("4090", "4x4090", "a100_80gb", "1xh100_sxm5"):
        assert resolved(f"hw={whole}").provenance["hw.card"] == "given"


@pytest.mark.parametrize("name", catalog.card_names())
def test_every_card_of_the_catalog_can_be_billed(name):
    plan = resolved("model=gpt2_124m", f"hw=2x{name}")
    assert plan.hw.card.name == name
    assert plan.hw.world_size == 2


@settings(max_examples=15, deadline=None)
@given(n_nodes=st.integers(1, 64), n_gpus=st.integers(1, 16))
def test_any_count_resolves_when_the_batch_is_a_multiple(n_nodes, n_gpus):
    world = n_nodes * n_gpus
    hw = resolved("model=gpt2_124m", f"hw={n_nodes}x{n_gpus}x4090", f"trainer.tokens_per_step={world * 1024 * 12}").hw
    assert (hw.n_nodes, hw.n_gpus_per_node, hw.world_size) == (n_nodes, n_gpus, world)


# whose machine, and for how much


def test_own_machine_costs_electricity_and_the_rented_reading_stands_beside():
    hw = resolved("model=gpt2_124m", machine=with_gpus(RTX_4090)).hw
    assert (hw.offer.owned, hw.offer.usd_per_hour, hw.electricity.pue) == (True, 0.0, 1.0)
    assert hw.alternative is not None
    assert (hw.alternative.owned, hw.alternative) == (False, catalog.cheapest_offer(hw.card, 1))


def test_named_card_is_rented_and_the_owned_reading_stands_beside():
    hw = resolved("model=gpt2_124m", "hw=4x4090").hw
    assert hw.offer == catalog.cheapest_offer(hw.card, 4)
    assert hw.electricity.pue > 1
    assert hw.alternative is not None
    assert hw.alternative.owned


def test_owned_can_be_said():
    hw = resolved("model=gpt2_124m", "hw=4x4090", "hw.owned=true", "hw.country=germany").hw
    assert (hw.offer.owned, hw.electricity.country) == (True, "germany")
    hw = resolved("model=gpt2_124m", "hw.owned=false", machine=with_gpus(RTX_4090)).hw
    assert not hw.offer.owned


def test_your_price_counts_and_means_that_the_machine_is_not_yours():
    hw = resolved("hw.price_usd_per_hour=0.5").hw
    assert (hw.offer.owned, hw.offer.usd_per_hour, hw.offer.provider) == (False, 0.5, "your price")
    hw = resolved("hw.price_usd_per_hour=0.5", "hw.owned=true").hw
    assert (hw.offer.owned, hw.offer.usd_per_hour) == (True, 0.5)


def test_price_that_nobody_publishes_is_unknown():
    custom = [
        "hw=custom",
        "hw.custom.memory_gib=24",
        "hw.custom.bf16_tflops=100",
        "hw.custom.bandwidth_gb_per_second=900",
    ]
    assert resolved("model=gpt2_124m", *custom).hw.offer.usd_per_hour is None


def test_your_tariff_and_watts_count():
    hw = resolved("hw.electricity_usd_per_kwh=0.31", "hw.watts=65").hw
    assert (hw.electricity.usd_per_kwh, hw.electricity.source, hw.watts) == (0.31, "given", 65)


# a card of one's own


def test_custom_card_has_the_given_numbers():
    card = resolved(
        "model=gpt2_124m",
        "hw=custom",
        "hw.n_gpus_per_node=2",
        "hw.custom={memory_gib: 24, bf16_tflops: 100, fp32_tflops: 50, bandwidth_gb_per_second: 900, watts: 300}",
    ).hw.card
    assert (card.memory_bytes, card.bandwidth_bytes_per_second, card.watts) == (24 * GIB, 900e9, 300)
    assert card.peak_flops_per_second == {"bf16": 100e12, "fp16": 100e12, "fp32": 50e12}
    assert card.has_bf16


def test_custom_card_without_numbers_says_which_are_missing():
    problem = problem_of("hw=custom", "hw.custom.memory_gib=24")
    assert "needs bandwidth_gb_per_second, bf16_tflops" in problem.message
    resolved("hw=custom", "hw.custom.memory_gib=24", *problem.fix.split())


# torchrun


def test_torchrun_decides_how_many_ranks_auto_has():
    machine = under_torchrun(with_gpus(*[RTX_4090] * 4), 2)
    assert resolved("model=gpt2_124m", machine=machine).hw.n_gpus_per_node == 2
    assert resolved(machine=under_torchrun(LAPTOP, 2)).hw.world_size == 2
    assert resolved("hw=cpu", machine=under_torchrun(LAPTOP, 2)).hw.world_size == 2


def test_torchrun_over_two_nodes():
    hw = resolved("model=gpt2_124m", machine=under_torchrun(with_gpus(*[RTX_4090] * 4), 8, 4)).hw
    assert (hw.n_nodes, hw.n_gpus_per_node) == (2, 4)


@pytest.mark.parametrize("asked", ["4x4090", "2x1x4090", "4xcpu"])
def test_torchrun_of_another_size_than_hw_is_the_wrong_machine(asked):
    with pytest.raises(WrongMachine, match=r"torchrun started 2 ranks, 2 on this node"):
        resolved("model=gpt2_124m", "data=stdlib", f"hw={asked}", machine=under_torchrun(LAPTOP, 2))


def test_torchrun_with_more_ranks_than_cards_is_the_wrong_machine():
    with pytest.raises(WrongMachine, match=r"--nproc_per_node=1"):
        resolved("model=gpt2_124m", machine=under_torchrun(with_gpus(RTX_4090), 2))


def test_configuration_errors_win_over_the_wrong_machine():
    assert problem_of("hw=4x4090", "name=a/b", machine=under_torchrun(LAPTOP, 2)).path == "name"


# cards of this machine


def test_mixed_cards_count_as_the_smallest_and_slowest():
    slow = replace(RTX_4090, name="NVIDIA GeForce RTX 3060", memory_total_bytes=12288 * MIB)
    card = resolved("model=gpt2_124m", machine=with_gpus(RTX_4090, slow)).hw.card
    assert card.name == "3060"
    assert card.memory_bytes is not None
    assert card.memory_bytes <= 12288 * MIB


def test_card_with_another_memory_than_the_catalogs_has_what_was_detected():
    modded = replace(RTX_4090, memory_total_bytes=49140 * MIB)
    assert resolved("model=gpt2_124m", machine=with_gpus(modded)).hw.card.memory_bytes == 49140 * MIB


def test_card_that_the_catalog_lacks_has_unknown_rates():
    unheard = replace(RTX_4090, name="NVIDIA Quux 9000", memory_total_bytes=40 * GIB)
    card = resolved("model=gpt2_124m", machine=with_gpus(unheard)).hw.card
    assert (card.label, card.memory_bytes, card.peak_flops_per_second) == ("NVIDIA Quux 9000", 40 * GIB, {})
    assert (card.bandwidth_bytes_per_second, card.has_bf16) == (None, True)


def test_cpu_rates_are_cores_times_clock_times_operations_per_cycle():
    card = resolved("hw=cpu").hw.card
    assert card.peak_flops_per_second == {"fp32": 2 * 3e9 * 64, "bf16": 2 * 3e9 * 1024}
    assert card.source.startswith("default: 2 cores x 3.0 GHz")
    plain = resolved("hw=cpu", machine=replace(LAPTOP, cpu_flags=frozenset({"avx2"}), cpu_hertz=None)).hw.card
    assert plain.peak_flops_per_second == {"fp32": 2 * 2.5e9 * 32}
    assert "(assumed)" in plain.source
    assert not plain.has_bf16


@pytest.mark.parametrize(
    ("hw", "fix"),
    [
        ("hw=1024xa100", "hw.n_nodes=128 hw.n_gpus_per_node=8"),
        ("hw=2x32xh100", "hw.n_nodes=8 hw.n_gpus_per_node=8"),
        ("hw=17x4090", "hw.n_nodes=2 hw.n_gpus_per_node=8"),
    ],
)
def test_more_cards_than_a_machine_has_are_refused_with_several_nodes(hw, fix):
    batch = ("trainer.micro_batch_size=1", "trainer.tokens_per_step=17825792", "trainer.n_steps=10")
    problem = problem_of(hw, *batch)
    assert (problem.path, problem.fix) == ("hw.n_gpus_per_node", fix)
    assert "no machine has" in problem.message
    resolved(hw, *batch, *fix.split())


def test_sixteen_cards_and_many_cores_are_machines():
    assert resolved("hw=16xv100").hw.n_gpus_per_node == 16
    assert resolved("hw=32xcpu", "trainer.tokens_per_step=4096").hw.n_gpus_per_node == 32


def test_spot_takes_the_cheapest_price_of_a_machine_that_may_be_taken_away():
    spot, steady = (
        resolved("model=gpt2_124m", "hw=8xh100", f"hw.spot={is_spot}").hw.offer for is_spot in (True, False)
    )
    assert spot.usd_per_hour is not None
    assert steady.usd_per_hour is not None
    assert spot.usd_per_hour < steady.usd_per_hour
    assert spot.interruptions is not None
    assert steady.interruptions is None
    given_rate = resolved("model=gpt2_124m", "hw=8xh100", "hw.spot=true", "hw.interruptions_per_day=2.4").hw.offer
    assert given_rate.interruptions is not None
    assert given_rate.interruptions.mid_per_hour == pytest.approx(0.1)


def test_purchase_of_ones_own_machine_is_shared_out_over_its_hours():
    """$1,600 / (4 x 2,000 h); with hours of one's own, over those."""
    assert resolved("hw.purchase_usd=1600").hw.offer.usd_per_hour == pytest.approx(0.2)
    offer = resolved("hw.purchase_usd=1600", "hw.lifetime_years=2", "hw.hours_per_year=8000").hw.offer
    assert offer.usd_per_hour == pytest.approx(0.1)
    assert offer.source == "purchase of $1,600 over 2 years of 8,000 h"


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        (("hw.spot=true",), "hw.spot"),
        (("hw=4x4090", "model=gpt2_124m", "hw.interruptions_per_day=1"), "hw.interruptions_per_day"),
        (("hw.purchase_usd=1600", "hw.price_usd_per_hour=1"), "hw.purchase_usd"),
        (("hw.lifetime_years=2",), "hw.lifetime_years"),
    ],
)
def test_options_of_money_that_contradict_each_other_are_refused(overrides, path):
    assert problem_of(*overrides).path == path


def test_disk_that_nobody_measured_says_that_it_is_assumed():
    assert resolved().provenance["hw.disk_bytes_per_second"].startswith("default, 500 MB/s")


def test_currency_is_frozen_with_its_rate_and_date():
    money = resolved("budget.currency=cny").budget.money
    assert money.currency.name == "cny"
    assert money.per_usd > 1
    assert money.as_of
