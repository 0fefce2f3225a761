"""The last lines of a run: why it ended, how far it came, what was saved, how it goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.finish import how_to_go_on, last_word, measured
from preflight import rundir
from preflight.bill import make_bill
from tests.conftest import build_plan
from trainers.outcome import Outcome

STOPPED = Outcome(exit_code=143, reason="SIGTERM")


@pytest.mark.parametrize(
    ("n_steps_done", "saved", "words"),
    [
        (0, None, "SIGTERM, before the first step: nothing saved"),
        (1200, 1200, "SIGTERM, after step 1,200 of 5,000: checkpoint saved"),
        (1200, 1000, "SIGTERM, after step 1,200 of 5,000: the checkpoint of step 1,000 is there"),
    ],
)
def test_finish_tells_how_far_a_stopped_run_came(tmp_path: Path, n_steps_done: int, saved: int | None, words: str):
    plan = build_plan(model="tiny", card="cpu", n_steps=5000)
    left = replace(rundir.unmeasured(plan, tmp_path, 143, "SIGTERM", None), n_steps_done=n_steps_done)
    rundir.write_actual(tmp_path, left)
    if saved is not None:
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "checkpoints" / f"step_{saved:08d}.pt").write_bytes(b"weights")
    actual = measured(make_bill(plan, ()), tmp_path, STOPPED)
    assert actual.exit_reason == words
    hint = f"To go on: python launch.py resume={tmp_path}\n"
    assert how_to_go_on(actual, tmp_path) == (hint if saved else "")
    assert last_word(actual) == words
    assert last_word(replace(actual, exit_code=6)) == "stopped (exit code 6)"
    cured = replace(actual, exit_code=5, exit_reason="the loss is nan\n  To fix: trainer.learning_rate=1e-4")
    assert how_to_go_on(cured, tmp_path) == how_to_go_on(replace(actual, exit_code=0), tmp_path) == ""
