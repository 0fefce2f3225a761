"""A word to the user that never ends the run: stderr may be closed, full, or a terminal that is gone."""

from __future__ import annotations

import sys
from contextlib import suppress


def warn(text: str) -> None:
    """On stderr, if somebody can still read it."""
    if sys.stderr is not None:  # None: closed before Python started
        with suppress(OSError, ValueError):  # nowhere is left to say it
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
