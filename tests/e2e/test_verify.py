"""One finished run: its outputs agree, and whatever is damaged afterwards is found."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import verify
from tests.e2e.conftest import ROOT, Finished

Damage = Callable[[Path], object]


def problems(runs_dir: Path) -> dict[str, list[str]]:
    """What is wrong, by what it is wrong with."""
    folder = verify.newest(runs_dir)
    assert folder is not None
    return {what: found for what, found in verify.findings(folder) if found}


def test_outputs_of_a_finished_run_agree(finished: Finished) -> None:
    runs_dir = finished.desk.runs
    assert problems(runs_dir) == {}
    done = subprocess.run([ROOT / "scripts" / "verify.sh", "--runs-dir", runs_dir], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all outputs are there, sound, and agree\n")


def flip(path: Path) -> None:
    """One bit of a tensor."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def edit(name: str, *keys: str, value: object) -> Damage:
    def act(folder: Path) -> None:
        document = json.loads((folder / name).read_text())
        place = document
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value
        (folder / name).write_text(json.dumps(document))

    return act


DAMAGES: dict[str, tuple[Damage, str, str]] = {
    "a bit of a checkpoint": (
        lambda folder: flip(max(folder.glob("checkpoints/step_*.pt"))), "checkpoints", "does not match its checksum"
    ),
    "a torn write": (
        lambda folder: (folder / "checkpoints" / "step_00000021.tmp").touch(), "checkpoints", "torn write"
    ),
    "no checkpoint": (lambda folder: shutil.rmtree(folder / "checkpoints"), "checkpoints", "there is none"),
    "a loss": (edit("actual.json", "actual", "train_loss", value=1.0), "metrics.jsonl", "last train/loss"),
    "a sum": (edit("actual.json", "actual", "wall_seconds", value=1.0), "actual.json", "its terms' sum"),
    "a step": (edit("actual.json", "actual", "n_steps_done", value=19), "actual.json", "after step 19 of 20"),
    "an estimate": (
        edit("plan.json", "estimate", "estimate/wall_seconds", value=1.0), "tracking", "estimate/wall_seconds in W&B"
    ),
    "a plan": (edit("plan.json", "plan", "model", "n_head", value=7), "plan.json", "n_head=7"),
    "a torn line": (
        lambda folder: append(folder / "metrics.jsonl", '{"step'), "metrics.jsonl", "is no row"
    ),
    "no metrics": (lambda folder: (folder / "metrics.jsonl").unlink(), "metrics.jsonl", "is missing"),
    "no ledger": (lambda folder: (folder.parent / "ledger.jsonl").unlink(), "ledger", "no line of"),
    "no report": (lambda folder: (folder / "report.txt").unlink(), "report.txt", "missing or empty"),
    "no W&B files": (lambda folder: shutil.rmtree(folder / "wandb"), "tracking", "no W&B files"),
    "no note": (lambda folder: (folder / "tracking.json").unlink(), "tracking", "tracking.json is missing"),
    "no plan": (lambda folder: (folder / "plan.json").write_text("{}"), "plan.json", "not a file of ours"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGES)
def test_whatever_is_damaged_is_found(finished: Finished, tmp_path: Path, case: str) -> None:
    damage, where, words = DAMAGES[case]
    runs_dir = tmp_path / "runs"
    shutil.copytree(finished.desk.runs, runs_dir)
    (folder,) = (path.parent for path in runs_dir.glob("*/plan.json"))
    damage(folder)
    found = problems(runs_dir)
    assert any(words in problem for problem in found[where]), found


def test_no_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main(["--runs-dir", str(tmp_path)]) == 2
    assert "`python launch.py` makes one" in capsys.readouterr().err
