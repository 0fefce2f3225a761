"""Constants and formatting. Inside, base units only: int bytes, float seconds, fractions 0..1."""

from __future__ import annotations

KIB = 2**10
MIB = 2**20
GIB = 2**30
GB = 10**9
SECONDS_PER_MINUTE = 60.0
SECONDS_PER_HOUR = 3600.0
SECONDS_PER_DAY = 86400.0
SECONDS_PER_YEAR = 365.25 * SECONDS_PER_DAY
JOULES_PER_KWH = 3.6e6


def format_bytes(n_bytes: float) -> str:
    """`12.3 GiB`, `640 MiB`, `3 KiB`: binary units, and says so."""
    if abs(n_bytes) >= GIB:
        return f"{n_bytes / GIB:.1f} GiB" if abs(n_bytes) < 100 * GIB else f"{n_bytes / GIB:,.0f} GiB"
    if abs(n_bytes) >= MIB:
        return f"{n_bytes / MIB:.0f} MiB"
    return f"{n_bytes / KIB:.0f} KiB"


def format_seconds(seconds: float) -> str:
    """`534 years`, `3.2 days`, `5.1 h`, `7.5 min`, `12 min`, `74 s`, `31 ms`: the unit a person would say."""
    if seconds >= 2 * SECONDS_PER_YEAR:
        return f"{years:.1f} years" if (years := seconds / SECONDS_PER_YEAR) < 10 else f"{years:,.0f} years"
    if seconds >= 2 * SECONDS_PER_DAY:
        return f"{seconds / SECONDS_PER_DAY:,.1f} days"
    if seconds >= 1.5 * SECONDS_PER_HOUR:
        return f"{seconds / SECONDS_PER_HOUR:.1f} h"
    if seconds >= 2 * SECONDS_PER_MINUTE:
        return f"{minutes:.1f} min" if (minutes := seconds / SECONDS_PER_MINUTE) < 10 else f"{minutes:.0f} min"
    if seconds >= 1:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2g} ms"


def format_hours(hours: float) -> str:
    """A limit in hours and what is held against it: `63.66 h` to four digits; below 1.5 h and from two years on as
    `format_seconds` has it."""
    seconds = hours * SECONDS_PER_HOUR
    if hours < 0:
        return f"-{format_hours(-hours)}"
    if hours < 1.5 or seconds >= 2 * SECONDS_PER_YEAR:
        return format_seconds(seconds)
    return f"{hours:,.4g} h" if hours < 1000 else f"{hours:,.0f} h"


def format_usd(usd: float) -> str:
    """Money with the digits that matter: `$612`, `$4.20`, `$0.0031`."""
    if usd >= 100:
        return f"${usd:,.0f}"
    return f"${usd:.2f}" if usd >= 0.1 else f"${usd:.2g}"


def format_count(n: float) -> str:
    """`124.4M`, `10.0B`, `491,520`: people read 1.3B faster than 1300000000."""
    for limit, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if abs(n) >= 0.99995 * limit:  # 999,997,440 is 1.0B, not 1000.0M
            return f"{n / limit:.1f}{letter}"
    return f"{n:,.0f}"


def format_kwh(kwh: float) -> str:
    """Energy: `12.3 kWh`, `4.1 Wh`."""
    return f"{kwh:,.1f} kWh" if kwh >= 1 else f"{kwh * 1e3:.3g} Wh"


def format_runs(n_runs: int) -> str:
    """`1 run`, `4 runs`."""
    return "1 run" if n_runs == 1 else f"{n_runs} runs"
