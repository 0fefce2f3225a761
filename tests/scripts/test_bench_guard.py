"""Budgets stop runs, and what is resumed ends at the same losses. How closely budgets hold is for a quiet machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.bench_guard import main

ROOT = Path(__file__).resolve().parents[2]


def test_bench_guard_stops_runs_and_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = tmp_path / "text.txt"
    text.write_text("\n".join(path.read_text() for path in sorted((ROOT / "preflight").glob("*.py"))))
    main(["--runs", "2", "--steps", "40", "data=text", f"data.path={text}", f"data.dir={tmp_path / 'data'}"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("max_hours")]
    n_steps, codes, same = ([row[i] for row in rows] for i in (7, 8, 9))
    assert (codes[0], same) == ("6", ["True", "True"])
    assert int(n_steps[0]) < 40
