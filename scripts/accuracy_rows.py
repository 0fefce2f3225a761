"""The rows of a table of public measurements: those that can be judged, and why the others cannot."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class Skip(Exception):
    """Why a row is not judged."""


def usable_rows(path: Path, read: Callable[[Mapping[str, str]], T]) -> tuple[list[T], dict[str, int]]:
    """What `read` makes of each row, and how many it refused (Skip) for which reason."""
    usable: list[T] = []
    skipped: dict[str, int] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                usable.append(read(row))
            except Skip as reason:
                skipped[str(reason)] = skipped.get(str(reason), 0) + 1
    return usable, skipped
