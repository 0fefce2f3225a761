"""Which cards exist, who rents them for how much, what electricity costs: dated facts from the CSVs in conf/catalog.

A card is found by what its name says, not by what it resembles: every word of the name must be explained by one row, so
"RTX 4090 Laptop GPU", "4090 D" or a MIG slice never get the desktop card's numbers. Where several rows explain a name,
the one with the longest matching alias wins, and the file's order (commonest first) decides between equals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from preflight.errors import ConfigError, Problem
from preflight.hw_plan import Card, CardKind, Electricity, Offer
from preflight.providers import CATALOG_DIR, billing, interruptions
from preflight.tables import Columns, read_table
from preflight.units import GB, MIB

ON_DEMAND, SPOT = "usd_per_hour", "usd_per_hour_spot"  # columns of prices.csv
TERA = 1e12
# Words that name the maker or the product line and tell no two cards apart.
_MAKERS = {"nvidia", "corporation", "geforce", "tesla", "rtx", "gtx", "amd", "instinct", "apple"}
_NOISE = frozenset(_MAKERS | {"gpu", "graphics", "card", "accelerator"})
# A price this much older than the catalog's newest one is used only when nobody newer sells that count.
CURRENT_DAYS = 180
_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
_RATES = tuple(f"{precision}_tflops" for precision in _PRECISIONS)
_FLAGS = dict.fromkeys(("ecc", "has_bf16", "p2p_over_pcie"), "[01]?")
_COLUMNS = {
    "cards": Columns(
        texts=("name", "aliases", "label", "source", "as_of"),
        numbers=("compute_capability", "memory_mib_addressable", "bandwidth_gb_per_second", "watts",
                 "nvlink_gb_per_second", *_RATES),
        forms={"also": ".*", "bare_names": ".*", "kind": "|".join(kind.value for kind in CardKind),
               "pcie_generation": r"\d?", **_FLAGS},
    ),
    "prices": Columns(
        texts=("provider", "instance", "card", "source"),
        numbers=("usd_per_hour", "usd_per_hour_spot"),
        forms={"n_gpus": r"[1-9]\d{0,3}", "counts_sold": r"\d{1,4}(-\d{1,4})?( \d{1,4}(-\d{1,4})?)*"},
        dates=("as_of",),
    ),
    "electricity": Columns(
        texts=("country", "source", "as_of"), numbers=("usd_per_kwh", "g_co2_per_kwh"), forms={"codes": ".*"}
    ),
    "pue": Columns(texts=("provider", "source"), numbers=(), forms={"pue": r"[1-9](\.\d+)?"}),
}  # fmt: skip


def find_card(name: str) -> Card:
    """By short name or alias (`4090`, `rtx4090`, `NVIDIA GeForce RTX 4090`); KeyError lists near names."""
    row = _find_row(name)
    if row is None:
        near = ", ".join(near_card_names(name))
        raise KeyError(f"unknown card {name!r}; the nearest of the catalog: {near}")
    return _card(row["name"])


def card_names() -> tuple[str, ...]:
    """Every short name, in the catalog's order."""
    return tuple(row["name"] for row in _rows("cards"))


def is_ambiguous(name: str) -> bool:
    """True when the name fits several variants and the commonest was taken (v100, h100, a100)."""
    row = _find_row(name)
    return row is not None and any(_words(bare) == _words(name) for bare in _split(row["bare_names"]))


def near_card_names(name: str, n_names: int = 4) -> tuple[str, ...]:
    """The short names most like `name`, for "did you mean"."""
    import difflib  # not at module level: only mistakes need it

    spellings = {_squashed(alias): row["name"] for row in _rows("cards") for alias in _split(row["aliases"])}
    squashed = _squashed(name)
    contained = sorted((spelling for spelling in spellings if spelling in squashed), key=len, reverse=True)
    close = difflib.get_close_matches(squashed, spellings, n=3 * n_names, cutoff=0.4)
    found = dict.fromkeys(spellings[spelling] for spelling in (*contained, *close))
    return tuple(found)[:n_names] or card_names()[:n_names]


def cheapest_offer(card: Card, n_gpus_per_node: int, *, is_spot: bool = False) -> Offer | None:
    """The cheapest current offer that sells that count on one node, on demand or spot; None when nobody does."""
    column = SPOT if is_spot else ON_DEMAND
    priced = [
        (float(row[column]) * n_gpus_per_node / int(row["n_gpus"]), row)
        for row in _newest_prices(column)
        if row["card"] == card.name and _sells(row, n_gpus_per_node)
    ]
    oldest = _oldest_current()
    current = [offer for offer in priced if offer[1]["as_of"] >= oldest] or priced
    if not current:
        return None
    _, row = min(current, key=lambda offer: (offer[0], offer[1]["provider"], offer[1]["instance"]))
    return _offer(row, n_gpus_per_node, float(row[column]), is_spot=is_spot)


class Listed(NamedTuple):
    """A machine that somebody rents out."""

    card_name: str
    n_gpus: int
    offer: Offer
    is_spot: bool


def listed_offers(*, with_spot: bool) -> tuple[Listed, ...]:
    """Every current offer for every count it is sold in; old ones only where nobody newer sells that card and count."""
    found = list(_listed(ON_DEMAND, is_spot=False))
    if with_spot:
        found += _listed(SPOT, is_spot=True)
    oldest = _oldest_current()
    kept = {(each.card_name, each.n_gpus, each.is_spot) for each in found if each.offer.as_of >= oldest}
    return tuple(
        each for each in found if each.offer.as_of >= oldest or (each.card_name, each.n_gpus, each.is_spot) not in kept
    )


def is_current(offer: Offer) -> bool:
    """False for a price that is only used because nobody newer sells that card and count."""
    return offer.as_of >= _oldest_current()


def most_on_a_node() -> int:
    """Cards of the largest machine that somebody rents out."""
    return max(max(_counts_sold(row)) for row in _rows("prices"))


def provider_names() -> tuple[str, ...]:
    """Everybody whose prices are listed."""
    return tuple(dict.fromkeys(row["provider"] for row in _rows("prices")))


def check_prices(path: Path) -> None:
    """ConfigError when a file could not stand in for prices.csv: its form, or a card that nobody knows."""
    known = set(card_names())
    rows = read_table(path, _COLUMNS["prices"])
    if strangers := sorted({row["card"] for row in rows} - known):
        message = f"{path} names cards that cards.csv lacks: {', '.join(strangers)}"
        raise ConfigError([Problem(path="", value="", message=message, fix="leave them out, or add the cards")])


def _listed(column: str, *, is_spot: bool) -> Iterator[Listed]:
    for row in _newest_prices(column):
        for n_gpus in _counts_sold(row):
            offer = _offer(row, n_gpus, float(row[column]), is_spot=is_spot)
            yield Listed(card_name=row["card"], n_gpus=n_gpus, offer=offer, is_spot=is_spot)


def _offer(row: Mapping[str, str], n_gpus: int, usd_per_hour: float, *, is_spot: bool) -> Offer:
    """One node with that many cards; the row's price is for its own number of them."""
    return Offer(
        provider=row["provider"],
        instance=row["instance"] if n_gpus == int(row["n_gpus"]) else f"{n_gpus} x {row['instance']}",
        usd_per_hour=round(usd_per_hour * n_gpus / int(row["n_gpus"]), 6),
        as_of=row["as_of"],
        source=row["source"],
        owned=False,
        billing=billing(row["provider"]),
        interruptions=interruptions(row["provider"]) if is_spot else None,
    )


def electricity(country: str) -> Electricity:
    """Tariff and grid intensity by name or ISO code, at the wall of an owned machine; KeyError when unknown."""
    for row in _rows("electricity"):
        if country.strip().lower() in (row["country"], *row["codes"].split()):
            return Electricity(
                country=row["country"],
                usd_per_kwh=_number(row["usd_per_kwh"]),
                g_co2_per_kwh=_number(row["g_co2_per_kwh"]),
                pue=1.0,
                source=row["source"],
                as_of=row["as_of"],
            )
    near = ", ".join(near_countries(country, cutoff=0.5) or ["world", "united states"])
    raise KeyError(f"no electricity data for {country!r}; near: {near} (names or ISO codes)")


def near_countries(country: str, cutoff: float = 0.75) -> list[str]:
    """Names that are spelt alike, the likeliest first."""
    import difflib  # only mistakes need it

    return difflib.get_close_matches(country.strip().lower(), country_names(), n=3, cutoff=cutoff)


def country_names() -> tuple[str, ...]:
    """Every country of the electricity table."""
    return tuple(row["country"] for row in _rows("electricity"))


def pue(provider: str) -> tuple[float, str]:
    """Facility power over machine power of a provider's data centres, with its source; `other` when not listed."""
    by_provider = {row["provider"]: row for row in _rows("pue")}
    row = by_provider.get(provider, by_provider["other"])
    return float(row["pue"]), row["source"]


@cache
def _rows(table: str) -> tuple[dict[str, str], ...]:
    return read_table(CATALOG_DIR / f"{table}.csv", _COLUMNS[table])


@lru_cache(maxsize=256)
def _find_row(name: str) -> Mapping[str, str] | None:
    words = _words(name)
    best: tuple[int, Mapping[str, str]] | None = None
    for row in _rows("cards") if words else ():
        optional = _words(row["also"])
        for alias in _split(row["aliases"]):
            needed = _words(alias)
            explained = needed <= words and words - needed <= optional
            if explained and (best is None or len(needed) > best[0]):
                best = (len(needed), row)
    return best[1] if best else None


@lru_cache(maxsize=1024)
def _words(name: str) -> frozenset[str]:
    """`NVIDIA A100-SXM4-80GB` -> a100 sxm4 80gb; `rtx4090` -> 4090; `80 GB` -> 80gb."""
    text = re.sub(r"\b(rtx|gtx)(?=[a-z]?\d)", r"\1 ", name.lower().replace("_", " "))
    text = re.sub(r"\b(\d+)[ -]?(?:gb|gib|g)\b", r"\1gb", text)
    return frozenset(re.findall(r"[a-z0-9]+", text)) - _NOISE


def _squashed(name: str) -> str:
    return "".join(word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _NOISE)


def _split(aliases: str) -> list[str]:
    return aliases.split("|") if aliases else []


@cache
def _card(short_name: str) -> Card:
    row = next(row for row in _rows("cards") if row["name"] == short_name)
    memory_mib = _number(row["memory_mib_addressable"])
    peaks = {precision: _number(row[f"{precision}_tflops"]) for precision in _PRECISIONS}
    return Card(
        name=row["name"],
        label=row["label"],
        kind=CardKind(row["kind"]),
        compute_capability=_number(row["compute_capability"]),
        memory_bytes=None if memory_mib is None else int(memory_mib) * MIB,
        bandwidth_bytes_per_second=_scaled(row["bandwidth_gb_per_second"], GB),
        peak_flops_per_second={name: peak * TERA for name, peak in peaks.items() if peak is not None},
        has_bf16=row["has_bf16"] == "1",
        watts=_number(row["watts"]),
        ecc=_flag(row["ecc"]),
        nvlink_bytes_per_second=_scaled(row["nvlink_gb_per_second"], GB),
        p2p=_flag(row["p2p_over_pcie"]),
        pcie_generation=int(row["pcie_generation"]) if row["pcie_generation"] else None,
        source=row["source"],
        as_of=row["as_of"],
    )


def _newest_prices(column: str) -> list[dict[str, str]]:
    """The last row of each provider, instance, card and count that has a price there; older rows are history."""
    newest: dict[tuple[str, ...], dict[str, str]] = {}
    for row in _rows("prices"):
        if not row[column]:
            continue  # only the other kind of price
        key = (row["provider"], row["instance"], row["card"], row["n_gpus"])
        if key not in newest or row["as_of"] >= newest[key]["as_of"]:
            newest[key] = row
    return list(newest.values())


@cache
def _oldest_current() -> str:
    from datetime import date

    newest = max(date.fromisoformat(row["as_of"]) for row in _rows("prices"))
    return date.fromordinal(newest.toordinal() - CURRENT_DAYS).isoformat()


def _sells(row: Mapping[str, str], n_gpus: int) -> bool:
    return n_gpus in _counts_sold(row)


def _counts_sold(row: Mapping[str, str]) -> list[int]:
    """`counts_sold` is `8`, `1 8` or `1-8`."""
    parts = [part.partition("-") for part in row["counts_sold"].split()]
    return [n for low, _, high in parts for n in range(int(low), int(high or low) + 1)]


def _number(text: str) -> float | None:
    return float(text) if text else None


def _scaled(text: str, factor: float) -> float | None:
    return float(text) * factor if text else None


def _flag(text: str) -> bool | None:
    return text == "1" if text else None
