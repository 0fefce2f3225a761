"""Until when must the run be done? `budget.deadline` as a moment, and as hours from now."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import NamedTuple

from preflight.resolve.resolution import Resolution
from preflight.units import SECONDS_PER_HOUR

PATH = "budget.deadline"
MEANT_DAYS = 1  # what a fix proposes


class Deadline(NamedTuple):
    """The same moment three times. None: there is none."""

    text: str | None = None  # ISO 8601 with its zone
    unix_seconds: float | None = None
    hours: float | None = None  # from the plan's creation


def resolve_deadline(given: str | None, created_at: str, resolution: Resolution) -> Deadline:
    """A time without a zone is this machine's; a moment that has passed is refused."""
    if given is None:
        return Deadline()
    now = datetime.fromisoformat(created_at)
    fix = f"{PATH}={(now + timedelta(days=MEANT_DAYS)).astimezone():%Y-%m-%dT%H:%M}"
    text = given.strip()
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.astimezone()
        unix_seconds = moment.timestamp()
    except (ValueError, OverflowError, OSError):  # the last two: years that the machine's zone does not reach
        resolution.refuse(PATH, given, "must be a date and a time, such as 2026-12-24T18:00 or ...T18:00+01:00", fix)
        return Deadline()
    if _is_date(text):
        if moment.replace(hour=18) > now:
            fix = f"{PATH}={moment.date().isoformat()}T18:00"
        resolution.refuse(PATH, given, "needs a time of that day too", fix)
        return Deadline()
    hours = (unix_seconds - now.timestamp()) / SECONDS_PER_HOUR
    if hours <= 0:
        message = f"has passed: it is {now.astimezone(moment.tzinfo):%Y-%m-%dT%H:%M%z} there"
        resolution.refuse(PATH, given, message, fix)
        return Deadline()
    return Deadline(text=moment.isoformat(timespec="minutes"), unix_seconds=unix_seconds, hours=hours)


def _is_date(text: str) -> bool:
    """Which moment of the day is meant would be a guess."""
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
