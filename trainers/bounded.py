"""How long may a call that nobody needs for training keep it waiting? Trackers answer to networks and helpers."""

from __future__ import annotations

import threading
from collections.abc import Callable


def bounded(act: Callable[[], object], timeout_seconds: float) -> None:
    """Run `act` in a thread that is given up after a while (TimeoutError); its own exception comes out here.

    Of any type: once its helper is killed, a call that was given up may end in whatever its library raises then.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001  raised below, unless nobody waits any more
            errors.append(error)

    thread = threading.Thread(target=run, name="tracking", daemon=True)
    thread.start()
    thread.join(timeout_seconds)
    if thread.is_alive():
        raise TimeoutError(f"no end after {timeout_seconds:g} s")
    for error in errors:
        raise error


def one_line(error: Exception) -> str:
    """What a person reads of it."""
    return " ".join(str(error).split())[:200] or type(error).__name__
