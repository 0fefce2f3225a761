"""Text out of a run folder."""

# ruff: noqa: TID253 - torch is what is tested here
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from preflight.plan import RunPlan
from preflight.planfile import to_jsonable
from scripts.export_hf import main as export_hf
from scripts.sample import main
from trainers import checkpoint
from trainers.gpt import GPT


@pytest.fixture
def run_dir(make_plan: Callable[..., RunPlan], tmp_path: Path) -> Path:
    """An untrained model, saved twice."""
    plan = make_plan(model="tiny", card="cpu", sequence_length=16)
    torch.manual_seed(0)
    model = GPT(plan.model, 16)
    folder = tmp_path / "runs" / "20261130T120000.000000-tiny"
    for step in (1, 2):
        state = {"model": model.state_dict(), "plan": json.dumps(to_jsonable(plan))}
        checkpoint.save(folder, step, state, keep=5)
    return folder


def test_sample_writes_text_after_the_prompt(run_dir: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["--prompt", "def ", "--tokens", "30", "--samples", "2", "--seed", "3"]
    assert main([str(run_dir), *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("def ") == 2
    assert "tiny after step 2 of 1000" in captured.err
    assert main(["--runs-dir", str(run_dir.parent), *arguments]) == 0  # the newest run is this one
    assert capsys.readouterr().out == captured.out
    latest = ["latest", "--runs-dir", str(run_dir.parent)]
    assert main([*latest, *arguments]) == 0
    assert capsys.readouterr().out == captured.out
    assert export_hf([*latest[:1], str(run_dir.parent / "out"), *latest[1:]]) == 0
    assert "after step 2" in capsys.readouterr().out


def test_sample_takes_the_newest_sound_checkpoint_and_says_so(run_dir: Path, capsys: pytest.CaptureFixture[str]):
    newest = checkpoint.path_of(run_dir, 2)
    newest.write_bytes(b"torn")
    assert main([str(run_dir), "--tokens", "5"]) == 0
    said = capsys.readouterr().err
    assert f"passed over {newest}" in said
    assert "after step 1" in said
    assert main([str(newest)]) == 2
    assert "cut short" in capsys.readouterr().err


def test_sample_says_what_to_do_when_there_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["--runs-dir", str(tmp_path)]) == 2
    assert "python launch.py" in capsys.readouterr().err
