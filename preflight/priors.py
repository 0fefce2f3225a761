"""What do cards and links reach in practice? Dated measurements from conf/catalog, part of the sums like constants.

`efficiency.csv`: the best measured matmul rate of a card over its listed peak (`half`: bf16 and fp16); a card without
a row takes the row of its kind. `links.csv`: all-reduce bus bandwidth (NCCL's definition: 2(n-1)/n x bytes / seconds)
and latency of a link. `cuda.csv`: which driver and cards a CUDA release wants. `failures.csv`: how often runs are
interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from preflight.hw_plan import Card
from preflight.plan import Precision
from preflight.tables import Columns, read_table

CATALOG_DIR = Path(__file__).resolve().parent.parent / "conf" / "catalog"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins the ranks of an all-reduce."""

    name: str
    bus_bandwidth: float  # bytes per second, or the fraction of the listed rate that `unit` says
    unit: str
    latency_seconds: float


_TABLES = {
    "efficiency": Columns(
        texts=("card", "rate", "matmul_fraction", "source"), numbers=("matmul_fraction",), forms={}, dates=("as_of",)
    ),
    "links": Columns(
        texts=("link", "bus_bandwidth", "latency_seconds", "source"),
        numbers=("bus_bandwidth", "latency_seconds"),
        forms={"unit": r"[a-z_]+(_\d+)?"},
        dates=("as_of",),
    ),
    "cuda": Columns(
        texts=("cuda", "min_driver", "min_compute_capability", "source"),
        numbers=("min_driver", "min_compute_capability"),
        forms={"cuda": r"\d+"},
        dates=("as_of",),
    ),
    "failures": Columns(
        texts=("cause", "per_gpu_hour", "source"), numbers=("per_gpu_hour",), forms={}, dates=("as_of",)
    ),
}


@cache
def _rows(name: str) -> tuple[dict[str, str], ...]:
    """Checked: a fault of the table names its file and line."""
    return read_table(CATALOG_DIR / f"{name}.csv", _TABLES[name])


@cache
def _matmul_fractions() -> Mapping[tuple[str, str], float]:
    return {(row["card"], row["rate"]): float(row["matmul_fraction"]) for row in _rows("efficiency")}


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
        for row in _rows("links")
    }


def link(name: str) -> Link:
    """The row of links.csv."""
    return _links()[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaNeeds:
    """What a major release of CUDA wants."""

    min_driver: int
    min_compute_capability: float


def cuda_needs(major: int) -> CudaNeeds | None:
    """None: a release that the table does not know."""
    row = next((row for row in _rows("cuda") if int(row["cuda"]) == major), None)
    if row is None:
        return None
    return CudaNeeds(min_driver=int(row["min_driver"]), min_compute_capability=float(row["min_compute_capability"]))


def failures_per_gpu_hour(cause: str) -> float:
    """`hardware`, `no_ecc`."""
    return next(float(row["per_gpu_hour"]) for row in _rows("failures") if row["cause"] == cause)
