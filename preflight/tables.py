"""What does a table of facts say? Its faults name the file and the line: people add prices and cards by hand."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from preflight.errors import ConfigError, Problem


class Columns(NamedTuple):
    """What a table needs to have; other columns are notes."""

    texts: Sequence[str]  # never empty
    numbers: Sequence[str]  # may be empty: unknown; else finite and not negative
    forms: Mapping[str, str]  # column -> regular expression of a whole cell
    dates: Sequence[str] = ()


def read_table(path: Path, columns: Columns) -> tuple[dict[str, str], ...]:
    """Every row; ConfigError with all faults."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            rows = [(reader.line_num, row) for row in reader]
    except OSError as error:
        raise _broken(path, [error.strerror or str(error)]) from error
    except (csv.Error, ValueError) as error:  # of which UnicodeDecodeError is one
        raise _broken(path, [f"no CSV in UTF-8: {error}"]) from error
    needed = (*columns.texts, *columns.numbers, *columns.forms, *columns.dates)
    missing = [name for name in needed if name not in (reader.fieldnames or ())]
    if missing or not rows:
        raise _broken(path, [f"has no column {', '.join(missing)}" if missing else "has no rows"])
    if faults := [f"line {line}: {fault}" for line, row in rows for fault in _row_faults(row, columns)]:
        raise _broken(path, faults)
    return tuple(row for _, row in rows)


def _row_faults(row: dict[str, str], columns: Columns) -> Iterator[str]:
    if None in row or None in row.values():
        yield "has not as many cells as there are columns"
        return
    yield from (f"{name} is empty" for name in columns.texts if not row[name].strip())
    yield from (f"{name}={row[name]} is no number" for name in columns.numbers if not _is_number(row[name]))
    wrong = [name for name, form in columns.forms.items() if not re.fullmatch(form, row[name])]
    wrong += [name for name in columns.dates if not _is_date(row[name])]
    yield from (f"{name}={row[name]} has not the form of the other rows" for name in wrong)


def _is_number(text: str) -> bool:
    try:
        return not text or 0 <= float(text) < float("inf")
    except ValueError:
        return False


def _is_date(text: str) -> bool:
    from datetime import date

    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


def _broken(path: Path, faults: list[str]) -> ConfigError:
    return ConfigError(
        [Problem(path="", value="", message=f"{path} {fault}", fix=f"correct {path.name}") for fault in faults]
    )
