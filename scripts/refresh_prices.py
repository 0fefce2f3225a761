"""Newer prices for the catalog, without cloud credentials: fetch, show what changes, replace the file in one piece.

    python scripts/refresh_prices.py                                SkyPilot's public CSVs, all providers
    python scripts/refresh_prices.py aws lambda --dry-run           only these; show, write nothing
    python scripts/refresh_prices.py --source gpuhunt runpod        by gpuhunt (pip install 'preflight[prices]')
    python scripts/refresh_prices.py --from FOLDER_OR_URL           the same layout from a mirror: <cloud>/vms.csv

A price that is listed gets its new value, region, date and source; the cheapest machine of each provider, card and
count is added; everything else keeps its old row with its own date. A provider whose table cannot be read, is not a
table of prices, or has prices that no card costs is left as it is (exit code 1 then); bad data never replaces good.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs from any folder

from preflight.catalog import check_prices
from preflight.errors import ConfigError
from preflight.providers import CATALOG_DIR
from scripts.price_sources import SKYPILOT_CLOUDS, SKYPILOT_URL, BadPrices, Quote, Quotes, gpuhunt, skypilot

COLUMNS = (
    "provider", "instance", "card", "n_gpus", "counts_sold", "usd_per_hour", "usd_per_hour_spot", "region", "as_of",
    "source",
)  # fmt: skip
JUMP = 10.0  # times the old price of the same machine: a fault of the table, not a market
Key = tuple[str, str, str, str]
Row = dict[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every provider was read; 1: some were not, or nothing could be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("providers", nargs="*", help=f"of {', '.join(SKYPILOT_CLOUDS)}; all when none is named")
    parser.add_argument("--source", choices=("skypilot", "gpuhunt"), default="skypilot")
    parser.add_argument("--from", dest="place", default=SKYPILOT_URL, help="folder or URL with <cloud>/vms.csv")
    parser.add_argument("--catalog", type=Path, default=CATALOG_DIR / "prices.csv")
    parser.add_argument("--as-of", type=date.fromisoformat, default=datetime.now(UTC).date(), help="date of the prices")
    parser.add_argument("--dry-run", action="store_true", help="show what would change")
    given = parser.parse_args(arguments)
    old = read_rows(given.catalog)
    found, n_failed = [], 0
    for provider in given.providers or SKYPILOT_CLOUDS:
        try:
            found.append(skypilot(provider, given.place) if given.source == "skypilot" else gpuhunt(provider))
        except BadPrices as error:
            n_failed += 1
            print(f"left as it is: {provider}: {error}", file=sys.stderr)
    new = merged(old, found, given.as_of.isoformat())
    print("\n".join(difference(old, new, found)))
    if new != old and not given.dry_run:
        try:
            replace_catalog(given.catalog, new)
        except (ConfigError, OSError) as error:
            print(f"the catalog was not replaced: {error}", file=sys.stderr)
            return 1
    return 1 if n_failed else 0


def read_rows(path: Path) -> list[Row]:
    """The catalog as it stands."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def merged(old: Sequence[Row], found: Iterable[Quotes], as_of: str) -> list[Row]:
    """Old rows in their order, with new prices where there are any; then the cheapest of what was not listed."""
    rows = {_key(row): dict(row) for row in old}
    for each in found:
        listed = {key for key in rows if key[0] == each.provider}
        for key, prices in _cheapest(each.quotes).items():
            if key in listed:
                rows[key] = _updated(rows[key], prices, as_of, each.source)
        for key, prices in _cheapest_unlisted(each.quotes, rows).items():
            blank = dict(zip(COLUMNS, (*key, key[3], "", "", "", "", ""), strict=True))
            rows[key] = _updated(blank, prices, as_of, each.source)
    return list(rows.values())


def _key(row: Mapping[str, str]) -> Key:
    return row["provider"], row["instance"], row["card"], row["n_gpus"]


def _cheapest(quotes: Iterable[Quote]) -> dict[Key, dict[bool, Quote]]:
    """Of all regions, by machine; on demand under False, spot under True."""
    best: dict[Key, dict[bool, Quote]] = {}
    for quote in quotes:
        prices = best.setdefault((quote.provider, quote.instance, quote.card, str(quote.n_gpus)), {})
        if quote.is_spot not in prices or quote.usd_per_hour < prices[quote.is_spot].usd_per_hour:
            prices[quote.is_spot] = quote
    return best


def _cheapest_unlisted(quotes: Iterable[Quote], rows: Mapping[Key, Row]) -> dict[Key, dict[bool, Quote]]:
    """The cheapest machine of each card and count, on demand, unless it is listed already."""
    best: dict[tuple[str, str, str], tuple[float, Key, dict[bool, Quote]]] = {}
    for key, prices in _cheapest(quotes).items():
        kind = (key[0], key[2], key[3])
        if False in prices:
            candidate = (prices[False].usd_per_hour, key, prices)
            if kind not in best or candidate[0] < best[kind][0]:
                best[kind] = candidate
    return {key: prices for _, key, prices in best.values() if key not in rows}


def _updated(row: Row, prices: Mapping[bool, Quote], as_of: str, source: str) -> Row:
    """A price that jumps by more than anything on a market does keeps its old row."""
    new = dict(row)
    for column, is_spot in (("usd_per_hour", False), ("usd_per_hour_spot", True)):
        quote = prices.get(is_spot)
        if quote is None:
            continue
        was = float(row[column]) if row[column] else None
        if was is not None and not 1 / JUMP <= quote.usd_per_hour / was <= JUMP:
            print(f"not believed: {'/'.join(_key(row))}: ${was:g} -> ${quote.usd_per_hour:g}", file=sys.stderr)
            return row
        new[column] = f"{quote.usd_per_hour:.6g}"
    region = prices[False].region if False in prices else row["region"]
    return new | {"region": region, "as_of": as_of, "source": source}


def difference(old: Sequence[Row], new: Sequence[Row], found: Sequence[Quotes]) -> list[str]:
    """What a person looks at before it counts: - old, + new, ~ changed, and what was left out."""
    before = {_key(row): row for row in old}
    lines = []
    n_same = 0
    for row in new:
        was = before.get(_key(row))
        name = f"{row['provider']} {row['instance']} ({row['n_gpus']} x {row['card']})"
        if was is None:
            lines.append(f"+ {name}: {_prices(row)}")
        elif _prices(was) != _prices(row):
            lines.append(f"~ {name}: {_prices(was)} -> {_prices(row)}")
        else:
            n_same += 1
    lines.append(f"{len(new) - n_same} of {len(new)} rows have new prices; {n_same} keep theirs")
    for each in found:
        if each.left_out:
            names = ", ".join(f"{name} ({n})" for name, n in sorted(each.left_out.items()))
            lines.append(f"no card of the catalog, left out: {each.provider}: {names}")
    return lines


def _prices(row: Mapping[str, str]) -> str:
    spot = f", spot ${float(row['usd_per_hour_spot']):.2f}" if row["usd_per_hour_spot"] else ""
    return (f"${float(row['usd_per_hour']):.2f}" if row["usd_per_hour"] else "on demand unknown") + spot


def replace_catalog(path: Path, rows: Sequence[Row]) -> None:
    """Written beside, checked as every program will read it, then renamed. ConfigError: it would not be sound."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            file.write(text.getvalue())
            file.flush()
            os.fsync(file.fileno())
        check_prices(temporary)
        temporary.chmod(path.stat().st_mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
