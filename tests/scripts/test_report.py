"""The report over a ledger: what a person reads, what a spreadsheet reads, and a picture."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from preflight.plan import RunPlan
from preflight.planfile import to_jsonable
from preflight.record import append_line
from preflight.units import GIB
from scripts import report, report_rows, report_tables
from scripts.ending import ended

MakePlan = Callable[..., RunPlan]


def record(
    make_plan: MakePlan,
    *,
    decision: str = "go",
    wall: float | None = 110.0,
    steps: tuple[int, int] = (0, 1000),
    **fields: Any,
) -> dict[str, Any]:
    """A bill of 100 s (80-120), 2 GiB (1.5-2.5), 10 ms a step; `wall` None: it was refused. `steps` of 1000."""
    plan = make_plan(model="tiny", card="cpu")
    estimate = {"peak_device_bytes": 2 * GIB, "peak_device_bytes_low": 1.5 * GIB, "peak_device_bytes_high": 2.5 * GIB,
                "wall_seconds": 100.0, "wall_seconds_low": 80.0, "wall_seconds_high": 120.0,
                "step_seconds": 0.01, "cost_usd": None}  # fmt: skip
    actual = {"peak_device_bytes": 3 * GIB, "wall_seconds": wall, "step_seconds": 0.02, "cost_usd": None,
              "first_step": steps[0], "n_steps_done": steps[1]}  # fmt: skip
    return {
        "schema_version": 1, "run_id": "r", "name": plan.name, "created_at": plan.created_at, "device": "test CPU",
        "decision": decision, "exit_code": 0 if wall else 3, "exit_reason": "done", "plan": to_jsonable(plan),
        "estimate": {f"estimate/{leaf}": value for leaf, value in estimate.items()},
        "actual": {f"actual/{leaf}": value for leaf, value in actual.items()} if wall else None,
    } | fields  # fmt: skip


@pytest.fixture
def runs_dir(tmp_path: Path, make_plan: MakePlan) -> Path:
    for line in (
        record(make_plan),
        record(make_plan, wall=150.0, decision="go_lowered"),
        record(make_plan, wall=None, decision="refuse"),
    ):
        append_line(tmp_path / "ledger.jsonl", line)
    return tmp_path


def test_report_shows_a_row_a_run_and_the_refused_ones_too(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(runs_dir)]) == 0
    text = capsys.readouterr().out
    assert "2.0 GiB > 3.0 GiB (1.50)" in text
    assert "100 s > 110 s (1.10)" in text
    assert "lowered, done" in text
    assert "refused (3)" in text


def test_report_sums_up_errors_and_how_often_the_band_held(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.main([str(runs_dir)])
    lines = capsys.readouterr().out.splitlines()
    assert "3 bills: 1 go, 1 lowered, 1 refused" in lines
    # wall: 110 and 150 of 100 -> errors 0.1 and 0.5, median 0.3; only the first is within 80-120
    assert "wall time    median error  30.0% of 2,  30.0% of the last 2, band held 1 of 2" in lines
    # memory: 3 of 2 GiB twice, above 2.5
    assert "peak memory  median error  50.0% of 2,  50.0% of the last 2, band held 0 of 2" in lines
    # no band, so no coverage; and nothing is known of the cost
    assert "step         median error 100.0% of 2, 100.0% of the last 2" in lines
    assert not [line for line in lines if line.startswith("cost")]


def test_report_writes_a_picture_where_it_is_asked_to(runs_dir: Path, tmp_path: Path) -> None:
    report.main([str(runs_dir)])
    report.main([str(runs_dir), "--png", str(tmp_path / "deep" / "plot.png")])
    for path in (runs_dir / "report.png", tmp_path / "deep" / "plot.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_report_plot_shows_bill_and_measurement_of_each_run(make_plan: MakePlan) -> None:
    figure = report.draw([record(make_plan), record(make_plan, wall=150.0)])
    wall, memory = figure.axes
    measured = next(line for line in wall.lines if line.get_label() == "measured")
    assert list(measured.get_ydata()) == [110.0, 150.0]
    assert next(line for line in memory.lines if line.get_label() == "measured").get_ydata() == pytest.approx(
        [3.0, 3.0]
    )


def test_report_csv_has_base_units_and_leaves_the_unknown_empty(
    runs_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report.main([str(runs_dir), "--csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 3
    assert (rows[0]["wall_seconds_estimated"], rows[0]["wall_seconds_actual"]) == ("100.0", "110.0")
    assert (rows[0]["cost_usd_estimated"], rows[2]["wall_seconds_actual"]) == ("", "")
    assert (rows[0]["on"], rows[0]["precision"]) == ("cpu", "bf16")
    assert not (runs_dir / "report.png").exists()


def test_report_says_what_to_do_when_the_ledger_is_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(tmp_path)]) == 2
    assert f"no runs in {tmp_path}/ledger.jsonl yet; `python launch.py` makes the first" in capsys.readouterr().err


def test_report_takes_the_option_of_other_scripts_and_ends_quietly_when_its_reader_is_gone(
    runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as nobody_reads:
        monkeypatch.setattr(sys, "stdout", nobody_reads)
        assert ended(lambda: report.main(["--runs-dir", str(runs_dir), "--csv"])) == 141
    monkeypatch.undo()
    assert ended(lambda: 2) == 2


def test_report_goes_on_after_a_torn_line(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (runs_dir / "ledger.jsonl").open("a") as file:
        file.write('{"torn')
    assert report.main([str(runs_dir)]) == 0
    captured = capsys.readouterr()
    assert "line 4 skipped" in captured.err
    assert "3 bills" in captured.out


def test_report_of_refusals_only_has_no_plot(
    tmp_path: Path, make_plan: MakePlan, capsys: pytest.CaptureFixture[str]
) -> None:
    append_line(tmp_path / "ledger.jsonl", record(make_plan, wall=None, decision="refuse"))
    assert report.main([str(tmp_path)]) == 0
    assert "no plot" in capsys.readouterr().out


PARTS = [((0, 11), 130, "interrupted"), ((0, 300), 143, "terminated"), ((466, 1000), 0, "done"), ((0, 20), 5, "exit 5")]


@pytest.mark.parametrize(("steps", "exit_code", "ending"), PARTS)
def test_report_leaves_the_totals_of_a_part_of_a_run_out_and_says_so(
    make_plan: MakePlan, steps: tuple[int, int], exit_code: int, ending: str
) -> None:
    part = record(make_plan, wall=4.0, steps=steps, exit_code=exit_code)
    lines = report_tables.summary([record(make_plan), part])
    assert "wall time    median error  10.0% of 1,  10.0% of the last 1, band held 1 of 1" in lines
    assert "step         median error 100.0% of 2, 100.0% of the last 2" in lines
    assert lines[-1] == "left out of wall time and cost: 1 run that did not do all steps in one go"
    assert report_tables.cell(report_rows.pair_of(part, "wall_seconds"), str) == "100.0 > 4.0"
    assert report_rows.outcome(part) == ending


def test_report_of_whole_runs_leaves_nothing_out(make_plan: MakePlan) -> None:
    assert not [line for line in report_tables.summary([record(make_plan)]) if "left out" in line]


def test_report_plots_whole_runs_only(make_plan: MakePlan, tmp_path: Path) -> None:
    assert "no plot" in report.save_plot([record(make_plan, wall=4.0, steps=(0, 11))], tmp_path / "plot.png")


@pytest.mark.parametrize("option", ["--html", "--png"])
def test_report_says_where_it_could_not_be_written(
    runs_dir: Path, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    if option == "--png":
        pytest.importorskip("matplotlib")
    (tmp_path / "a_file").write_text("")
    assert report.main([str(runs_dir), option, str(tmp_path / "a_file" / "report")]) == 2
    assert f"To fix: {option}=" in capsys.readouterr().err
