"""Do the machines of one run agree? Other versions compute something else, other clocks confuse every log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

CLOCK_SECONDS = 2.0  # NTP keeps machines within milliseconds


def differences(
    software: Mapping[str, Any], *, python: str, torch: str, rank: int, sent_unix: float | None, received_unix: float
) -> Iterator[str]:
    """Rank 0's against this rank's. A word that arrives before it was sent shows a clock that is behind."""
    for name, here in (("python", python), ("torch", torch)):
        there = software.get(name)
        if there is not None and there != here:
            yield f"rank {rank} has {name} {here}, rank 0 has {there}: install the same on every machine"
    if sent_unix is not None and received_unix < sent_unix - CLOCK_SECONDS:
        behind = f"{sent_unix - received_unix:.0f} s behind that of rank 0"
        yield f"the clock of rank {rank}'s machine is {behind}: timedatectl set-ntp true on both"
