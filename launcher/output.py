"""Words for the user, on streams that may be closed, full or of another encoding: none of that ends a run."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO


def prepare_streams() -> None:
    """A closed stream becomes the null device; a character that the terminal lacks is escaped, not fatal."""
    sys.stdout = _usable(sys.stdout)
    sys.stderr = _usable(sys.stderr)


def say(text: str) -> None:
    """A line on stdout."""
    sys.stdout = _write(sys.stdout, text)


def complain(text: str) -> None:
    """A line on stderr."""
    sys.stderr = _write(sys.stderr, text)


def _usable(stream: TextIO | None) -> TextIO:
    if stream is None:
        return _nowhere()
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return stream


def _write(stream: TextIO, text: str) -> TextIO:
    """The stream to use from now on: a reader that has gone away does not come back."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        return _nowhere()
    return stream


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")
