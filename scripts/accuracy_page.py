"""docs/accuracy.md is written by the programs that measure: each replaces its own section and leaves the others."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version

TITLE = "# How right are the sums?\n\nEvery section is written by the program that it names, with `--write`.\n"


def put_section(path: Path, name: str, heading: str, body: str) -> None:
    """Between its two markers; at the end of the page when it is new there."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    section = f"{begin}\n## {heading}\n\n{stamp()}\n\n{body.strip()}\n{end}\n"
    page = path.read_text(encoding="utf-8") if path.exists() else TITLE
    if begin in page and end in page:
        before, rest = page.split(begin, 1)
        after = rest.split(end, 1)[1].lstrip("\n")
        page = before + section + ("\n" + after if after else "")
    else:
        page = page.rstrip("\n") + "\n\n" + section
    path.write_text(page, encoding="utf-8")


def stamp() -> str:
    """When, and with which versions."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    return f"{datetime.now(UTC):%Y-%m-%d}, Python {python_version()}, torch {torch}."


def code(text: str) -> str:
    """As a program printed it."""
    return f"```text\n{text.strip()}\n```"
