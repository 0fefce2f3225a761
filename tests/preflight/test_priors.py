"""What cards and links reach: dated rows, and the kind's row for a card without one."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from preflight import catalog
from preflight.hw_plan import CardKind
from preflight.plan import Precision
from preflight.priors import attention_fraction, link, matmul_fraction
from tests.conftest import A100_80GB, CPU, RTX_4090

CATALOG = Path(__file__).resolve().parents[2] / "conf" / "catalog"


@pytest.mark.parametrize("name", ["efficiency.csv", "links.csv"])
def test_every_row_says_where_it_is_from_and_when(name: str) -> None:
    with (CATALOG / name).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            assert len(row["source"]) > 10, row
            assert len(row["as_of"]) == 10, row


def test_rows_name_cards_of_the_catalog_or_kinds() -> None:
    known = {*catalog.card_names(), *(kind.value for kind in CardKind)}
    with (CATALOG / "efficiency.csv").open(encoding="utf-8", newline="") as file:
        assert {row["card"] for row in csv.DictReader(file)} <= known


@pytest.mark.parametrize("name", catalog.card_names())
def test_every_card_has_a_fraction_at_every_precision(name: str) -> None:
    card = catalog.find_card(name)
    assert all(0.3 <= matmul_fraction(card, precision) <= 1.0 for precision in Precision)


def test_measured_matmuls_come_before_the_kind() -> None:
    """stas00's table: 271.2 of 312 TFLOPS."""
    assert matmul_fraction(A100_80GB, Precision.bf16) == 0.87
    assert matmul_fraction(replace(A100_80GB, name="a_new_card"), Precision.bf16) == 0.80
    assert matmul_fraction(RTX_4090, Precision.fp32) == matmul_fraction(A100_80GB, Precision.fp32) == 0.90
    assert matmul_fraction(CPU, Precision.bf16) == 0.75


def test_fused_attention_lags_only_where_its_kernels_do() -> None:
    assert attention_fraction(catalog.find_card("h100"), Precision.bf16) == 0.36
    assert attention_fraction(A100_80GB, Precision.bf16) == 1.0
    assert attention_fraction(catalog.find_card("h100"), Precision.fp32) == 1.0


def test_links_are_rows() -> None:
    assert link("nvlink").unit == "fraction_of_one_way"
    assert link("pcie_p2p").bus_bandwidth > link("pcie_no_p2p").bus_bandwidth
