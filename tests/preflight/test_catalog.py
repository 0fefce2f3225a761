"""Cards by name, offers by count, electricity by country."""

from __future__ import annotations

import csv
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.catalog import (
    CATALOG_DIR,
    card_names,
    cheapest_offer,
    country_names,
    electricity,
    find_card,
    is_ambiguous,
    near_card_names,
    pue,
)
from preflight.hw_plan import CardKind

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "short"),
    [
        # as nvidia-smi, NVML and torch spell them
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100_pcie"),
        ("NVIDIA H100 NVL", "h100_nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla T4", "t4"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "6000ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "pro6000"),
        ("NVIDIA GeForce RTX 3060", "3060"),
        ("NVIDIA GeForce RTX 3090", "3090"),
        ("NVIDIA GeForce RTX 4060 Ti", "4060ti"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "4070tis"),
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("NVIDIA GeForce RTX 5090", "5090"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla V100-SXM2-32GB", "v100_32gb"),
        ("Tesla V100-PCIE-16GB", "v100_pcie_16gb"),
        ("Tesla V100-PCIE-32GB", "v100_pcie_32gb"),
        ("NVIDIA A100-SXM4-40GB", "a100_40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100_80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100_pcie_40gb"),
        ("NVIDIA A100 80GB PCIe", "a100_pcie_80gb"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI250X / MI250", "mi250x"),
        ("Apple M2 Max", "m2max"),
        # as people type them
        ("4090", "4090"),
        ("rtx4090", "4090"),
        ("RTX 4090", "4090"),
        ("rtx_4090", "4090"),
        ("4060Ti", "4060ti"),
        ("rtxa6000", "a6000"),
        ("rtx6000ada", "6000ada"),
        ("v100", "v100"),
        ("a100", "a100_80gb"),
        ("A100 40 GB", "a100_40gb"),
        ("a100-80g", "a100_80gb"),
        ("h100_sxm5", "h100"),
        ("h100_80gb", "h100"),
    ],
)
def test_find_card_reads_device_names_and_short_names(name: str, short: str):
    assert find_card(name).name == short


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "4090d",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "Quadro RTX 6000",
        "NVIDIA H200 NVL",
        "NVIDIA GB200",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA L40",
        "NVIDIA GeForce RTX 3080 12GB",
        "",
    ],
)
def test_find_card_never_lends_one_cards_numbers_to_another(name: str):
    with pytest.raises(KeyError, match="unknown card"):
        find_card(name)


def test_find_card_names_the_nearest_when_unknown():
    with pytest.raises(KeyError) as caught:
        find_card("h10")
    assert "'h10'; the nearest of the catalog: h100," in caught.value.args[0]
    assert near_card_names("4900")[0] == "4090"
    assert near_card_names("NVIDIA GeForce RTX 4090 Laptop GPU")[0] == "4090"
    assert near_card_names("zzz")  # never empty


def test_every_short_name_finds_its_own_row():
    assert [find_card(name).name for name in card_names()] == list(card_names())
    assert len(set(card_names())) == len(card_names()) == 46


def test_is_ambiguous_only_for_names_that_fit_several_variants():
    assert [name for name in card_names() if is_ambiguous(name)] == ["3060", "3080", "4060ti", "v100", "h100", "mi250x"]
    assert is_ambiguous("a100")
    assert is_ambiguous("NVIDIA H100")
    assert not is_ambiguous("a100_80gb")
    assert not is_ambiguous("NVIDIA H100 80GB HBM3")
    assert not is_ambiguous("no such card")


def test_4090_in_base_units():
    card = find_card("4090")
    assert card.label == "RTX 4090 24 GB"
    assert card.kind is CardKind.cuda
    assert card.compute_capability == 8.9
    assert 23.4 * GIB < card.memory_bytes < 23.6 * GIB  # torch's total, below nvidia-smi's 24,564 MiB
    assert card.bandwidth_bytes_per_second == 1008e9
    assert card.peak_flops_per_second == {"fp32": 82.58e12, "tf32": 82.6e12, "bf16": 165.2e12, "fp16": 165.2e12}
    assert (card.has_bf16, card.watts, card.ecc, card.p2p, card.pcie_generation) == (True, 450, False, False, 4)
    assert card.nvlink_bytes_per_second == 0


def test_t4_has_neither_bf16_nor_tf32():
    card = find_card("t4")
    assert not card.has_bf16
    assert card.peak_flops_per_second == {"fp32": 8.1e12, "fp16": 65e12}


def test_memory_of_amd_cards_is_counted_in_gib():
    assert 191 * GIB < find_card("mi300x").memory_bytes < 192 * GIB
    assert 63 * GIB < find_card("mi250x").memory_bytes < 64 * GIB  # one die: what a process sees


def test_cards_table_is_complete_and_dated():
    for row in _read("cards"):
        assert row["source"], row["name"]
        assert date.fromisoformat(row["as_of"]) <= date(2026, 12, 31)
        reported = int(row["memory_mib_nvidia_smi"]) if row["memory_mib_nvidia_smi"] else None
        addressable = int(row["memory_mib_addressable"])
        if reported is not None:  # driver and ECC keep 200 to 1,200 MiB
            assert 200 <= reported - addressable <= 1200, row["name"]
        assert 0.74 <= addressable / (int(row["memory_gb_marketing"]) * 1024) <= 1.001, row["name"]


def test_cheapest_offer_takes_an_exact_count_and_the_newest_price():
    h100 = find_card("h100")
    one = cheapest_offer(h100, 1)
    assert one is not None
    # Vast's median of 2026-10-19 replaces its 6.15 of 2026-10-07 and its 1.87 of early 2026.
    assert (one.provider, one.usd_per_hour, one.as_of) == ("vast", 2.4024, "2026-10-19")
    assert not one.owned


def test_cheapest_offer_multiplies_only_where_the_provider_sells_several():
    four = cheapest_offer(find_card("4090"), 4)
    assert four is not None
    assert (four.provider, four.instance, four.usd_per_hour) == ("runpod", "4 x community pod", 1.36)  # 4 x 0.34
    one = cheapest_offer(find_card("4090"), 1)
    assert one is not None
    assert (one.provider, one.usd_per_hour) == ("openrelay", 0.29)  # sells one, so four are not 1.16


def test_cheapest_offer_falls_back_to_an_old_price_when_nobody_newer_sells_the_count():
    old = cheapest_offer(find_card("v100"), 8)
    assert old is not None
    assert (old.provider, old.usd_per_hour, old.as_of) == ("vast", 0.85, "2026-01-01")


def test_cheapest_offer_is_none_when_nobody_sells_it():
    assert cheapest_offer(find_card("4080"), 1) is None
    assert cheapest_offer(find_card("t4"), 8) is None
    assert cheapest_offer(find_card("4090"), 9) is None


@pytest.mark.parametrize("name", card_names())
def test_cheapest_offer_is_positive_dated_and_sold_in_that_count(name: str):
    for n_gpus in (1, 2, 4, 8):
        offer = cheapest_offer(find_card(name), n_gpus)
        if offer is not None:
            assert offer.usd_per_hour > 0
            assert date.fromisoformat(offer.as_of)
            assert offer.source


def test_prices_table_names_known_cards_only():
    for row in _read("prices"):
        assert row["card"] in card_names(), row
        assert date.fromisoformat(row["as_of"])
        assert row["source"]
        assert row["usd_per_hour"] or row["usd_per_hour_spot"]


def test_electricity_by_name_and_code():
    germany = electricity("de")
    assert germany == electricity("Germany") == electricity("DEU")
    assert (germany.usd_per_kwh, germany.g_co2_per_kwh, germany.pue) == (0.404, 380.9, 1.0)
    world = electricity("world")
    assert (world.usd_per_kwh, world.g_co2_per_kwh) == (0.167, 475.0)
    assert len(country_names()) >= 30


def test_electricity_names_near_countries_when_unknown():
    with pytest.raises(KeyError) as caught:
        electricity("germny")
    assert "germany" in caught.value.args[0]


def test_pue_of_an_unlisted_provider_is_the_survey_average():
    assert pue("aws")[0] == 1.135
    assert pue("runpod") == pue("other")
    assert pue("other")[0] == 1.58


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=40))
def test_near_card_names_answers_any_text_with_cards(text: str):
    near = near_card_names(text)
    assert 1 <= len(near) <= 4
    assert set(near) <= set(card_names())


def _read(table: str) -> list[dict[str, str]]:
    with (CATALOG_DIR / f"{table}.csv").open(newline="") as file:
        return list(csv.DictReader(file))
