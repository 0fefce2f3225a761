"""A run that is done, or of which something else is wanted, is left alone: a new one can begin with its weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from launch import main
from preflight import rundir
from preflight.errors import ExitCode
from preflight.plan import RunPlan
from preflight.planfile import write_json


@pytest.fixture
def runs_dir(tmp_path: Path, make_plan: Callable[..., RunPlan]) -> Path:
    """An older run that was stopped after three steps, and a newer one that is done."""
    plan = make_plan(model="tiny", card="cpu", runs_dir=str(tmp_path / "runs"))
    for name, code in (("1-stopped", ExitCode.INTERRUPTED), ("2-done", ExitCode.OK)):
        folder = tmp_path / "runs" / name
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints/step_00000003.pt").write_bytes(b"")
        write_json({"plan": plan, "asked_plan": plan, "findings": ()}, folder / rundir.PLAN)
        rundir.write_actual(folder, rundir.unmeasured(plan, folder, code, "done", None))
    return tmp_path / "runs"


def told(runs_dir: Path, capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    main([f"runs_dir={runs_dir}", "dry_run=true", *overrides])
    captured = capsys.readouterr()
    return " ".join((captured.out + captured.err).split())


def test_resume_of_a_finished_run_offers_a_new_one_from_its_weights(runs_dir: Path, capsys: pytest.CaptureFixture[str]):
    start = f"trainer.init_from={runs_dir}/2-done"
    assert f"finished; nothing to resume To go on from its weights: {start}, a new run" in told(
        runs_dir, capsys, "resume=latest"
    )
    longer = told(runs_dir, capsys, "resume=latest", "trainer.n_steps=40")
    assert "trainer.n_steps=40: a frozen plan takes only" in longer
    assert f"To fix: in place of resume=, {start} trainer.n_steps=40: a new run from its weights" in longer
    stopped = told(runs_dir, capsys, f"resume={runs_dir}/1-stopped", "seed=3")
    assert "To fix: leave out seed, or in place of resume=, trainer.init_from=" in stopped


def test_resume_of_no_run_proposes_one_that_can_go_on(runs_dir: Path, capsys: pytest.CaptureFixture[str]):
    assert f"To fix: resume={runs_dir}/1-stopped" in told(runs_dir, capsys, "resume=nosuch")
