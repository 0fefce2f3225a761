"""Interrupted runs save, say so by their exit code, and go on where they stopped."""

import json
import signal
from collections.abc import Callable

import psutil
import pytest

from tests.e2e.conftest import Desk, Finished
from tests.e2e.test_ranks import curve, wait_for_steps

Overrides = Callable[..., tuple[str, ...]]


@pytest.mark.parametrize(("number", "code", "hw"), [(signal.SIGTERM, 143, "cpu"), (signal.SIGINT, 130, "2xcpu")])
def test_signal_saves_and_resume_goes_on(desk: Desk, small: Overrides, number: int, code: int, hw: str) -> None:
    overrides = small(f"hw={hw}", "trainer.log_interval=1", "trainer.checkpoint_interval=100000", n_steps=3000)
    process = desk.start(*desk.arguments(*overrides))
    wait_for_steps(desk, psutil.Process(process.pid))
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    (run_dir,) = desk.run_dirs()
    actual = json.loads((run_dir / "actual.json").read_text())["actual"]
    assert actual["exit_code"] == code
    assert 0 < actual["n_steps_done"] < 3000
    assert next(run_dir.glob("checkpoints/step_*.pt"))
    assert "Traceback" not in err
    why = f"{signal.Signals(number).name}, after step {actual['n_steps_done']:,} of 3,000: checkpoint saved"
    assert actual["exit_reason"] == desk.ledger()[0]["exit_reason"] == why
    assert out.endswith(f"To go on: python launch.py resume={run_dir}\n{why} | {run_dir}\n")


def test_resumed_run_equals_an_undisturbed_one(desk: Desk, small: Overrides) -> None:
    overrides = small("trainer.log_interval=1", "trainer.checkpoint_interval=15", "trainer.precision=fp32", n_steps=40)
    assert desk.launch(*overrides).code == 0
    whole = curve(desk.run_dirs()[0])
    process = desk.start(*desk.arguments(*overrides))
    launcher = psutil.Process(process.pid)
    wait_for_steps_of_last(desk, launcher, 20)
    for child in launcher.children(recursive=True):
        child.kill()
    process.communicate(timeout=30)
    assert process.returncode == 5
    resumed = desk.frozen("resume=latest")
    assert resumed.code == 0, resumed.err
    assert len(desk.run_dirs()) == 2
    assert curve(desk.run_dirs()[1]) == whole
    assert "finished" in desk.frozen(f"resume={desk.run_dirs()[1]}").out


def wait_for_steps_of_last(desk: Desk, process: psutil.Process, n_lines: int) -> None:
    for _ in range(3000):  # a minute
        folders = desk.run_dirs()
        metrics = folders[-1] / "metrics.jsonl"
        if len(folders) == 2 and metrics.exists() and len(metrics.read_text().splitlines()) >= n_lines:
            return
        psutil.wait_procs([process], timeout=0.02)
    raise AssertionError("the second run did not get on")


def test_resume_of_nothing_says_what_is_there(desk: Desk) -> None:
    done = desk.frozen("resume=latest")
    assert done.code == 2
    assert "no run with a checkpoint" in done.err


def test_resume_takes_no_other_override(finished: Finished) -> None:
    done = finished.desk.frozen("resume=latest", "trainer.learning_rate=1", "seed=3")
    assert done.code == 2
    assert "trainer.learning_rate" in done.err
    assert "seed" in done.err
