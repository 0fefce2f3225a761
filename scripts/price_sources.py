"""Where do prices come from without credentials? SkyPilot's raw CSVs (HTTP or a folder), and gpuhunt's catalogs.

Each source gives quotes: provider, instance, card of our catalog, count, region, price, spot or not. What is no card of
ours is left out and counted; a table that is not what it should be raises BadPrices, and nothing of it is used.
"""

from __future__ import annotations

import csv
import io
import json
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preflight.catalog import find_card

SKYPILOT_URL = "https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs/v8"
SKYPILOT_CLOUDS = ("aws", "azure", "gcp", "lambda", "nebius", "oci", "runpod", "vast")
SKYPILOT_COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
GPUHUNT_NAMES = {"lambdalabs": "lambda", "vastai": "vast"}  # theirs -> ours
TIMEOUT_SECONDS = 30.0
MAX_BYTES = 2**26
LOWEST_USD, HIGHEST_USD = 0.01, 200.0  # an hour of one card: outside, a column has moved or a unit has changed


class BadPrices(Exception):
    """This source has nothing that can be used, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """One price of one machine."""

    provider: str
    instance: str
    card: str
    n_gpus: int
    region: str
    usd_per_hour: float
    is_spot: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotes:
    """What one provider asks, and what could not be read."""

    provider: str
    source: str  # for the catalog's own column
    quotes: tuple[Quote, ...]
    left_out: Mapping[str, int]  # accelerators that are no card of ours -> rows


def skypilot(cloud: str, place: str) -> Quotes:
    """`<place>/<cloud>/vms.csv`; `place` is a URL or a folder. BadPrices when it cannot be had or is no such table."""
    name = f"{place.rstrip('/')}/{cloud}/vms.csv"
    text = _fetch(name) if re.match(r"https?://", place) else _read(Path(name))
    rows = list(csv.DictReader(io.StringIO(text)))
    columns = rows[0].keys() if rows else ()
    missing = [column for column in SKYPILOT_COLUMNS if column not in columns]
    if missing:
        raise BadPrices(f"{name} is no table of prices: no column {', '.join(missing)}")
    left_out: Counter[str] = Counter()
    quotes = tuple(quote for row in rows for quote in _skypilot_quotes(cloud, row, left_out))
    return _checked(Quotes(provider=cloud, source=f"skypilot-catalog v8/{cloud}/vms.csv", quotes=quotes,
                           left_out=left_out), name)  # fmt: skip


def _skypilot_quotes(cloud: str, row: Mapping[str, str], left_out: Counter[str]) -> Iterator[Quote]:
    """On demand and spot; a spot price that equals the other one, or nothing, is a gap in the table."""
    name, count = (row["AcceleratorName"] or "").strip(), _number(row["AcceleratorCount"])
    if not name or not count or count != int(count):  # machines without cards, and slices of one
        return
    told_name, memory_gb = _gpu_info(row.get("GpuInfo"))
    card = _card(told_name, memory_gb) or _card(name, memory_gb)
    if card is None:
        left_out[name] += 1
        return
    price, spot = _number(row["Price"]), _number(row["SpotPrice"])
    for usd_per_hour, is_spot in ((price, False), (None if spot == price else spot, True)):
        if usd_per_hour:
            yield Quote(
                provider=cloud, instance=row["InstanceType"], card=card, n_gpus=int(count), region=row["Region"],
                usd_per_hour=usd_per_hour, is_spot=is_spot,
            )  # fmt: skip


def gpuhunt(provider: str) -> Quotes:
    """gpuhunt's published catalog of one provider, or the one in GPUHUNT_CATALOG_DIR."""
    import os

    try:
        from gpuhunt import Catalog
    except ImportError as error:
        raise BadPrices("gpuhunt is not installed: pip install 'preflight[prices]'") from error
    catalog = Catalog(balance_resources=False, auto_reload=False)
    theirs = {ours: name for name, ours in GPUHUNT_NAMES.items()}.get(provider, provider)
    try:
        if "GPUHUNT_CATALOG_DIR" not in os.environ:
            catalog.load()
        items = catalog.query(provider=theirs, min_gpu_count=1)
    except Exception as error:  # it raises what its sources raise; whatever it is, nothing is used
        raise BadPrices(f"gpuhunt has no prices of {provider}: {error}") from error
    left_out: Counter[str] = Counter()
    quotes = tuple(_gpuhunt_quotes(provider, items, left_out))
    return _checked(Quotes(provider=provider, source=f"gpuhunt catalog of {theirs}", quotes=quotes, left_out=left_out),
                    f"gpuhunt's {theirs}")  # fmt: skip


def _gpuhunt_quotes(provider: str, items: Iterable[Any], left_out: Counter[str]) -> Iterator[Quote]:
    for item in items:
        card = _card(item.gpu_name or "", item.gpu_memory)
        if card is None:
            left_out[item.gpu_name or "?"] += 1
        elif item.price:
            yield Quote(
                provider=provider, instance=item.instance_name, card=card, n_gpus=item.gpu_count, region=item.location,
                usd_per_hour=float(item.price), is_spot=bool(item.spot),
            )  # fmt: skip


def _checked(found: Quotes, name: str) -> Quotes:
    """A price far outside of what cards cost means that the table is not what it was: then none of it is believed."""
    if not found.quotes:
        raise BadPrices(f"{name} has no price of a card of ours")
    for quote in found.quotes:
        each = quote.usd_per_hour / quote.n_gpus
        if not LOWEST_USD <= each <= HIGHEST_USD:
            raise BadPrices(f"{name}: {quote.instance} at ${each:g} an hour and card cannot be right")
    return found


def _card(name: str, memory_gb: float | None) -> str | None:
    """With its memory first, which tells variants apart; None: no card of ours."""
    words = name.replace("-", " ").replace("_", " ")
    spellings = [words] if memory_gb is None else [f"{words} {round(memory_gb)}GB", words]
    for spelling in spellings:
        try:
            return find_card(spelling).name
        except KeyError:
            continue
    return None


def _gpu_info(text: str | None) -> tuple[str, float | None]:
    """Name and memory from `{'Gpus': [{'Name': 'A100 PCIe', 'MemoryInfo': {'SizeInMiB': 81920}, ...}]}`.

    The name says SXM or PCIe where the column does not; some write GB into the field of MiB.
    """
    try:
        gpu = json.loads((text or "").replace("'", '"'))["Gpus"][0]
        size = float(gpu["MemoryInfo"]["SizeInMiB"])
        return str(gpu["Name"]), size / 1024 if size > 1000 else size
    except (ValueError, KeyError, IndexError, TypeError):
        return "", None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadPrices(f"{path} cannot be read: {error}") from error


def _fetch(url: str) -> str:
    """The whole body or nothing: an answer that was cut short is an error."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            body = answer.read(MAX_BYTES + 1)
            expected = answer.headers.get("Content-Length")
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise BadPrices(f"{url} cannot be had: {error}") from error
    if len(body) > MAX_BYTES:
        raise BadPrices(f"{url} is larger than {MAX_BYTES:,} bytes")
    if expected is not None and int(expected) != len(body):
        raise BadPrices(f"{url} was cut short: {len(body):,} of {int(expected):,} bytes")
    try:
        return str(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadPrices(f"{url} is no text: {error}") from error
