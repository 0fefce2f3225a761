"""What do cards and links reach in practice? Dated measurements from conf/catalog, part of the sums like constants.

`efficiency.csv`: the best measured matmul rate of a card over its listed peak (`half`: bf16 and fp16); a card without
a row takes the row of its kind. `links.csv`: all-reduce bus bandwidth (NCCL's definition: 2(n-1)/n x bytes / seconds)
and latency of a link.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from preflight.hw_plan import Card
from preflight.plan import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins the ranks of an all-reduce."""

    name: str
    bus_bandwidth: float  # bytes per second, or the fraction of the listed rate that `unit` says
    unit: str
    latency_seconds: float


def _rows(name: str) -> list[dict[str, str]]:
    text = files("conf").joinpath("catalog", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def _matmul_fractions() -> Mapping[tuple[str, str], float]:
    return {(row["card"], row["rate"]): float(row["matmul_fraction"]) for row in _rows("efficiency.csv")}


def matmul_fraction(card: Card, precision: Precision) -> float:
    """Best measured matmul rate / listed peak: the card's row, else its kind's."""
    fractions = _matmul_fractions()
    rate = _rate_name(precision)
    for key in ((card.name, rate), (card.kind.value, rate)):
        if key in fractions:
            return fractions[key]
    return fractions[card.kind.value, "any"]


def attention_fraction(card: Card, precision: Precision) -> float:
    """The matmuls inside fused attention, alike: only where its kernels lag behind the card has the card a row."""
    fractions = _matmul_fractions()
    is_half = _rate_name(precision) == "half"
    return fractions.get((card.name, "attention"), 1.0) if is_half else 1.0


def _rate_name(precision: Precision) -> str:
    return "half" if precision in (Precision.bf16, Precision.fp16, Precision.bf16_pure) else precision.value


@cache
def _links() -> Mapping[str, Link]:
    return {
        row["link"]: Link(
            name=row["link"],
            bus_bandwidth=float(row["bus_bandwidth"]),
            unit=row["unit"],
            latency_seconds=float(row["latency_seconds"]),
        )
        for row in _rows("links.csv")
    }


def link(name: str) -> Link:
    """The row of links.csv."""
    return _links()[name]
