"""Which moment is meant, and is it still to come?"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from resolving import problem_of, resolved

from conf.choices import Enforce
from preflight.resolve.deadline import resolve_deadline
from preflight.resolve.resolution import Resolution

NOON = "2026-11-30T12:00:00+00:00"


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("given", "hours"),
    [("2026-11-30T18:30+00:00", 6.5), ("2026-11-30 18:30Z", 6.5), ("2026-11-30T18:30-05:00", 11.5),
     ("20261201T1200+0000", 24.0)],
)  # fmt: skip
def test_resolve_deadline_counts_the_hours_from_now(given: str, hours: float) -> None:
    resolution = Resolution()
    deadline = resolve_deadline(given, NOON, resolution)
    assert deadline.hours == pytest.approx(hours)
    assert deadline.unix_seconds == pytest.approx(1_796_040_000 + 3600 * hours)
    assert not resolution.problems


def test_resolve_deadline_takes_a_time_without_a_zone_as_this_machines(in_tokyo: None) -> None:
    deadline = resolve_deadline("2026-12-01T00:00", NOON, Resolution())  # 15:00 in UTC
    assert deadline.hours == pytest.approx(3.0)
    assert deadline.text == "2026-12-01T00:00+09:00"


@pytest.mark.parametrize(
    ("given", "why"),
    [("2026-11-30T11:59+00:00", "has passed: it is 2026-11-30T12:00+0000 there"), ("tomorrow", "date and a time"),
     ("", "date and a time"), ("2026-13-01T10:00", "date and a time"), ("2026-12-24", "needs a time"),
     ("2020-01-01", "needs a time"), ("2026-W53-1", "needs a time"), ("0900-01-01", "needs a time"),
     ("0001-01-01T00:00+00:00", "has passed")],
)  # fmt: skip
def test_resolve_deadline_refuses_what_is_past_or_vague_with_one_that_works(given: str, why: str) -> None:
    resolution = Resolution()
    assert resolve_deadline(given, NOON, resolution) == (None, None, None)
    (problem,) = resolution.problems
    assert (problem.path, problem.value) == ("budget.deadline", given)
    assert why in problem.message
    again = Resolution()
    assert resolve_deadline(problem.fix.partition("=")[2], NOON, again).hours is not None
    assert not again.problems


def test_resolve_deadline_is_none_when_none_is_given() -> None:
    assert resolve_deadline(None, NOON, Resolution()) == (None, None, None)


def test_a_budget_stops_unless_the_run_is_launched_over_it_knowingly() -> None:
    assert resolved("hw=4090").budget.enforce is Enforce.stop
    assert resolved("hw=4090", "lowering.policy=off").budget.enforce is Enforce.warn
    assert resolved("hw=4090", "lowering.policy=off", "budget.enforce=stop").budget.enforce is Enforce.stop


def test_a_deadline_and_the_machines_limit_reach_the_plan() -> None:
    plan = resolved("hw=4090", "budget.deadline=2026-12-01T12:00+00:00", "launcher.time_limit_hours=11.5")
    assert (plan.budget.deadline_hours, plan.budget.deadline) == (24.0, "2026-12-01T12:00+00:00")
    assert plan.launcher.time_limit_hours == 11.5
    assert problem_of("hw=4090", "budget.deadline=yesterday").path == "budget.deadline"
