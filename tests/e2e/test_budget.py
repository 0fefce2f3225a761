"""A budget stops two ranks after the same step, with the promised exit code, and another budget lets them go on."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.e2e.conftest import Desk
from tests.e2e.test_ranks import curve

Overrides = Callable[..., tuple[str, ...]]


def test_a_stopped_run_goes_on_within_another_budget(desk: Desk, small: Overrides) -> None:
    tight = ("budget.max_hours=1e-5", "lowering.policy=off", "budget.enforce=stop", "trainer.log_interval=1")
    stopped = desk.launch(*small("hw=2xcpu", *tight, n_steps=12))
    assert stopped.code == 6, stopped.err
    (run_dir,) = desk.run_dirs()
    actual = json.loads((run_dir / "actual.json").read_text())["actual"]
    assert (actual["exit_code"], actual["n_steps_done"], actual["failed_rank"]) == (6, 1, None)
    for once in ("To go on: python launch.py resume=", "budget.max_hours=1e-05 is used up", "checkpoint saved"):
        assert stopped.out.count(once) == 1
    assert desk.ledger()[0]["exit_code"] == 6
    assert next(run_dir.glob("checkpoints/step_*.pt"))
    before = json.loads((run_dir / "spent.json").read_text())["segments"]

    refused = desk.frozen("resume=latest", "budget.deadline=2020-01-01T10:00")
    assert refused.code == 2
    assert "has passed" in refused.err
    done = desk.frozen("resume=latest", "budget.max_hours=1")
    assert done.code == 0, done.err
    assert len(curve(run_dir)) == 12
    assert json.loads((run_dir / "plan.json").read_text())["plan"]["budget"]["max_hours"] == 1.0
    after = json.loads((run_dir / "spent.json").read_text())["segments"]
    assert after[:1] == before
    assert len(after) == 2
