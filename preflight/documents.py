"""Is there text, and in the field that was asked for? The first lines of files and the columns of .parquet ones say so.

A run reads all of it, and refuses then what these few lines did not show; here it is found before anything starts.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path

from preflight.dataset import shown_files_below
from preflight.errors import Problem

JSON_LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
N_FILES = 16  # of a folder
N_LINES = 8  # of a file
MAX_BYTES = 2**20  # of its lines
N_PROBE_BYTES = 8192  # a NUL byte in here and it is not text
PLAIN = re.compile(r"[\w.-]+")  # needs no quotes, in a shell or in Hydra's grammar


def first_fault(path: Path, field: str) -> Problem | None:
    """Of a file, or of the first documents below a folder; None: nothing is wrong with what was looked at."""
    files = [path] if path.is_file() else shown_files_below(path)
    documents = list(islice((file for file in files if file.suffix in (*JSON_LINES, PARQUET)), N_FILES))
    if not documents and path.is_file() and is_binary(path):
        return binary_problem(path)
    if not documents and field != "text" and path.is_file():
        message = f"has no effect: {path} is running text, not .jsonl or .parquet"
        return Problem(path="data.field", value=field, message=message, fix="data.field=text")
    return next(_faults(documents, field), None)


def is_binary(path: Path) -> bool:
    """Compressed, a picture, a program, or text in two bytes a letter."""
    with path.open("rb") as file:
        return b"\0" in file.read(N_PROBE_BYTES)


def binary_problem(path: Path) -> Problem:
    """A model would learn its noise."""
    message = "is not text in UTF-8: it has NUL bytes"
    return Problem(path="data.path", value=str(path), message=message, fix="unpack or convert it, or data=stdlib")


def _faults(files: Iterable[Path], field: str) -> Iterator[Problem]:
    for file in files:
        fault = _column_fault(file, field) if file.suffix == PARQUET else _line_fault(file, field)
        if fault is not None:
            yield fault


def _line_fault(path: Path, field: str) -> Problem | None:
    for number, line in _first_lines(path):
        text = text_of(line, field, path, partial(int, number))
        if isinstance(text, Problem):
            return text
    return None


def _first_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Their numbers, and whole ones: a line that goes on beyond MAX_BYTES says nothing yet."""
    n_left = MAX_BYTES
    with path.open("rb") as file:
        for number in range(1, N_LINES + 1):
            line = file.readline(n_left)
            n_left -= len(line)
            if n_left <= 0:
                return
            if line.strip():
                yield number, line


def _column_fault(path: Path, field: str) -> Problem | None:
    """None also without the library, or of a file that it cannot read: those have words of their own."""
    try:
        names = import_module("pyarrow.parquet").read_schema(path).names
    except (ImportError, ValueError, OSError):
        return None
    return None if field in names else field_problem(path, field, names)


def text_of(line: bytes, field: str, path: Path, number: Callable[[], int]) -> str | Problem:
    """The text of one document, or what is wrong with its line; its number, from 1, is counted only then."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        why = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        begins = ascii(line[:40].decode(errors="replace"))
        message = f"has a line that is no JSON: line {number()}, which begins with {begins} ({why})"
        return Problem(path="data.path", value=str(path), message=message, fix=f"mend or delete line {number()}")
    pairs = document if isinstance(document, dict) else {}
    text = pairs.get(field)
    if isinstance(text, str):
        return text
    return field_problem(path, field, [name for name, value in pairs.items() if isinstance(value, str)])


def field_problem(path: Path, field: str, names: Sequence[str]) -> Problem:
    """Which there are."""
    shown = (name if name.isprintable() else ascii(name) for name in map(str, names))
    message = f"{path} has no text in {field!r}; there are {', '.join(shown) or 'none'}"
    named = next((_with_field(str(name)) for name in names if str(name).strip() and str(name).isprintable()), None)
    return Problem(path="data.field", value=field, message=message, fix=named or "another file")


def _with_field(name: str) -> str:
    """As typed in a shell."""
    if PLAIN.fullmatch(name):
        return f"data.field={name}"
    escaped = name.replace("\\", "\\\\").replace('"', '\\"') if '"' in name or name.endswith("\\") else name
    return shlex.quote(f'data.field="{escaped}"')
