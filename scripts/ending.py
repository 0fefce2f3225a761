"""How does a script end whose reader is gone, as with `| head`? Quietly: there is nobody left to tell anything.

https://docs.python.org/3/library/signal.html#note-on-sigpipe
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

READER_GONE = 128 + 13  # as a shell says of a program that SIGPIPE ended


def ended(main: Callable[[], int]) -> int:
    """The exit code of a script's `main`, all that it printed handed over."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's own last flush
        return READER_GONE
    return code
