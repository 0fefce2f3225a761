"""Whoever is killed with -9: all end soon, and the folder says who, when and why.

Five seconds on a machine that is not overloaded; the limits here are wide enough for one that is, and narrow enough to
tell it from torchrun's own 30 seconds.
"""

import json
import signal
import subprocess
import time
from collections.abc import Callable

import psutil

from tests.e2e.conftest import Desk
from tests.e2e.test_ranks import TORCHRUN, wait_for_steps

Overrides = Callable[..., tuple[str, ...]]
ENDLESS = ("trainer.log_interval=1", "trainer.checkpoint_interval=1000000", "trainer.eval_interval=0")


def started(desk: Desk, *command: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A run that trains, and all its processes."""
    process = desk.start(*command)
    launcher = psutil.Process(process.pid)
    wait_for_steps(desk, launcher)
    return process, launcher.children(recursive=True)


def actual_of(desk: Desk) -> dict[str, object]:
    return json.loads((desk.run_dirs()[-1] / "actual.json").read_text())["actual"]


def assert_all_end(everyone: list[psutil.Process], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while left := [process for process in everyone if is_alive(process)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def is_alive(process: psutil.Process) -> bool:
    """The dead whom nobody waits for, in a container without an init, are dead."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_killed_agent_ends_all_and_nothing_is_overwritten(desk: Desk, small: Overrides) -> None:
    process, everyone = started(desk, *desk.arguments(*small("hw=2xcpu", *ENDLESS, n_steps=100_000)))
    (agent,) = [one for one in everyone if "trainers.backends.agent" in one.cmdline()]
    agent.kill()
    out, err = process.communicate(timeout=20)
    assert process.returncode == 5, err
    assert_all_end(everyone, 0.5)  # before the launcher, not after it
    last = out.splitlines()[-1]
    assert last.startswith("torchrun was killed")
    assert "after step" in last
    actual, recorded = actual_of(desk), desk.ledger()[-1]
    assert actual["exit_code"] == recorded["exit_code"] == 5
    assert actual["exit_reason"] == recorded["exit_reason"]
    assert next(desk.run_dirs()[0].glob("checkpoints/step_*.pt"))


def test_killed_launcher_is_recorded_by_the_next_launch(desk: Desk, small: Overrides) -> None:
    process, everyone = started(desk, *desk.arguments(*small("hw=2xcpu", *ENDLESS, n_steps=60_000)))
    process.kill()
    process.communicate(timeout=20)
    assert_all_end(everyone)
    (run_dir,) = desk.run_dirs()
    actual = actual_of(desk)
    assert (actual["exit_code"], actual["exit_reason"]) == (143, "launch.py was killed")
    assert not (desk.runs / "ledger.jsonl").exists()
    again = desk.launch(*small(n_steps=3))
    assert again.code == 0, again.err
    assert f"{run_dir}: launch.py was killed after step" in again.err
    killed, whole = desk.ledger()
    assert (killed["run_dir"], killed["exit_code"], whole["exit_code"]) == (str(run_dir), 143, 0)
    assert killed["actual"]["actual/n_steps_done"] == actual["n_steps_done"] > 0
    assert (run_dir / "lock").read_bytes() == b""  # told once


def test_killed_rank_is_not_blamed_on_its_neighbour_under_the_users_own_torchrun(desk: Desk, small: Overrides) -> None:
    process, everyone = started(desk, *TORCHRUN, *desk.arguments(*small(*ENDLESS, n_steps=100_000)))
    ranks = {one.environ()["RANK"]: one for one in everyone if "RANK" in one.environ()}
    ranks["1"].kill()
    out, _ = process.communicate(timeout=30)
    assert_all_end(everyone)
    actual = actual_of(desk)
    assert (actual["failed_rank"], actual["exit_code"]) == (1, 5)
    assert str(actual["exit_reason"]).startswith("rank 1 was killed by a signal")
    assert "after step" in str(actual["exit_reason"])
    assert f"{actual['exit_reason']} | {desk.run_dirs()[0]}" in out
    assert desk.ledger()[0]["exit_reason"] == actual["exit_reason"]


def test_stuck_rank_does_not_hold_up_the_end(desk: Desk, small: Overrides) -> None:
    """A rank that no signal reaches, as in a collective of a card that hangs."""
    process, everyone = started(desk, *desk.arguments(*small("hw=2xcpu", *ENDLESS, n_steps=100_000)))
    ranks = {one.environ()["RANK"]: one for one in everyone if "trainers.backends.agent" not in one.cmdline()}
    ranks["0"].send_signal(signal.SIGSTOP)
    ranks["1"].kill()
    out, err = process.communicate(timeout=20)
    assert process.returncode == 5, err
    last = out.splitlines()[-1]
    assert last.startswith("rank 1 was killed by SIGKILL")
    assert "after step" in last
    assert_all_end(everyone, 1.0)
    assert actual_of(desk)["failed_rank"] == 1
    assert desk.ledger()[0]["exit_code"] == 5


LARGE_LOGITS = (
    "model.n_layer=1", "model.n_embd=16", "model.vocab_size=50304", "trainer.sequence_length=64",
    "trainer.micro_batch_size=32", "trainer.tokens_per_step=2048", "trainer.eval_micro_batch_size=1",
    "trainer.eval_tokens=64", "trainer.precision=fp32", "calibration=off", "lowering.on_oom=relaunch",
)  # fmt: skip
WITH_LITTLE_MEMORY = """
import os, resource, runpy, sys
os.environ["GLIBC_TUNABLES"] = "glibc.malloc.mmap_threshold=1048576:glibc.malloc.trim_threshold=0"  # gives back at once
limit = 1_350_000_000  # of private memory: 32 sequences take a third more than 16
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_run_that_is_out_of_memory_is_lowered_and_goes_on_where_that_is_wanted(desk: Desk, small: Overrides) -> None:
    done = desk.run("-c", WITH_LITTLE_MEMORY, *desk.arguments(*small(*LARGE_LOGITS, n_steps=1)))
    assert done.code == 0, done.err
    assert "MEMORY RAN OUT although the bill said that it would do: rank 0, after step 0: RuntimeError" in done.err
    assert "that is the logits" in done.err
    assert "LOWERED trainer.micro_batch_size: 32 -> 16" in done.err
    assert done.out.count("done | ") == 1
    (run_dir,) = desk.run_dirs()
    failed, whole = desk.ledger()
    assert failed["run_dir"] == whole["run_dir"] == str(run_dir)
    assert (failed["exit_code"], whole["exit_code"]) == (5, 0)
    assert failed["misprediction"]["what"] == "memory"
    assert failed["misprediction"]["predicted_bytes"] < failed["misprediction"]["usable_bytes"]
    assert whole["misprediction"] is None
    document = json.loads((run_dir / "plan.json").read_text())
    assert (document["plan"]["trainer"]["micro_batch_size"], document["plan"]["trainer"]["grad_accum_steps"]) == (16, 2)
    assert [change["rung"] for change in document["changes"]] == ["batch"]
