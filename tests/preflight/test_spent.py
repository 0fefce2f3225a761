"""What segments add up to, and what stays when files are torn or missing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from preflight.spent import SPENT, Segment, Spent, read_segments, remember, total, write_segments

FIRST = Segment(started_unix_seconds=1.0, wall_seconds=100.0, cost_usd=2.0, energy_kwh=0.5)
SECOND = Segment(started_unix_seconds=2.0, wall_seconds=50.0, cost_usd=1.0, energy_kwh=None)


def actual(**fields: Any) -> Any:
    """As much of it as is asked for."""
    return SimpleNamespace(**{"wall_seconds": 60.0, "cost_usd": 1.5, "energy_kwh": None} | fields)


def test_total_adds_segments_and_keeps_the_unknown_unknown():
    assert total([]) == Spent(wall_seconds=0.0, cost_usd=0.0, energy_kwh=0.0, n_segments=0)
    assert total([FIRST, SECOND]) == Spent(wall_seconds=150.0, cost_usd=3.0, energy_kwh=None, n_segments=2)


def test_segments_come_back_as_they_were_written(tmp_path: Path):
    assert read_segments(tmp_path) == ()
    write_segments(tmp_path, [FIRST, SECOND])
    assert read_segments(tmp_path) == (FIRST, SECOND)
    assert [path.name for path in tmp_path.iterdir()] == [SPENT]


def test_a_torn_file_is_not_taken_for_an_empty_one(tmp_path: Path):
    (tmp_path / SPENT).write_text('{"schema_version": 1, "segm')
    assert read_segments(tmp_path) is None


def test_remember_takes_actual_json_where_a_segment_left_no_line(tmp_path: Path):
    remember(tmp_path, None)
    remember(tmp_path, actual(wall_seconds=None))
    assert read_segments(tmp_path) == ()
    remember(tmp_path, actual())
    found = read_segments(tmp_path)
    assert found is not None
    assert total(found) == Spent(wall_seconds=60.0, cost_usd=1.5, energy_kwh=None, n_segments=1)


def test_remember_never_overwrites_what_is_there(tmp_path: Path):
    write_segments(tmp_path, [FIRST])
    remember(tmp_path, actual())
    assert read_segments(tmp_path) == (FIRST,)
