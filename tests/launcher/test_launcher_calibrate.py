"""`action=calibrate`: bounded, priced first, recorded where later bills look. The measuring processes are stand-ins."""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.choices import Float32Matmul, TrackingBackend, TrackingMode
from launch import main
from launcher import calibrate as action
from launcher.short_run import n_steps_within, shortened
from preflight.errors import ExitCode
from preflight.estimate import estimate
from preflight.plan import Precision
from preflight.planfile import to_jsonable
from tests.conftest import build_plan
from tests.preflight.test_probes import FOUND
from trainers.backends import local
from trainers.outcome import Outcome

STEP_SECONDS = 0.05


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A probe and a trainer that answer at once."""
    monkeypatch.setattr(action, "ask_probe", lambda arguments, timeout_seconds: dict(FOUND))
    monkeypatch.setattr(local, "run", trained)
    return tmp_path / "runs"


def trained(plan: Any, run_dir: Path, **options: Any) -> Outcome:
    """Leaves what a run leaves."""
    from preflight import rundir

    actual = rundir.unmeasured(plan, run_dir, 0, "done", None)
    n_steps = plan.trainer.n_steps
    terms = {"startup": 4.0, "compile": 0.2, "steps": n_steps * STEP_SECONDS, "evaluations": 0.1, "checkpoints": 0.1,
             "data": 0.0, "shutdown": 0.1}  # fmt: skip
    actual = replace(
        actual, step_seconds=STEP_SECONDS, n_steps_done=n_steps, wall_seconds=sum(terms.values()),
        wall_terms_seconds=terms, torch="2.13.0",
    )  # fmt: skip
    rundir.write_actual(run_dir, actual)
    (run_dir / "checkpoints").mkdir()
    (run_dir / "checkpoints" / "step_20.pt").write_bytes(b"weights")
    return Outcome(exit_code=0, reason="done")


def launch(desk: Path, *overrides: str) -> int:
    return main(["action=calibrate", "hw=cpu", f"runs_dir={desk}", "tracking=none", *overrides])


def test_calibration_is_recorded_and_the_next_bill_rests_on_it(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(desk, "report=json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["action"] == "calibrate"
    assert document["found"]["bandwidth_bytes_per_second"] == 12e9
    assert document["actual"]["actual/n_steps_done"] == 20
    assert document["after"]["step_seconds"]["mid"] == pytest.approx(STEP_SECONDS, rel=0.05)
    assert document["after"]["step_seconds"]["source"].startswith("formula x")
    assert (desk / "probes.jsonl").read_text().count("\n") == 1
    record = json.loads((desk / "ledger.jsonl").read_text())
    assert (record["name"], record["exit_reason"]) == ("calibrate-tiny", "done")
    assert list(desk.glob("*/checkpoints")) == []  # of no use to anybody
    assert main(["hw=cpu", f"runs_dir={desk}", "tracking=none", "dry_run=true"]) == 0
    bill = " ".join(capsys.readouterr().out.split())
    assert "rates measured by action=calibrate on" in bill
    assert "calibrated by 1 run" in bill


def test_text_shows_found_beside_assumed(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(desk) == 0
    told = capsys.readouterr().out
    assert "at most 60 s and 20 steps" in told
    assert "disk, written                       200 MB/s   500 MB/s" in told
    assert told.index("before") < told.index("after")


def test_what_was_not_measured_is_said_with_a_limit_that_may_do(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden = FOUND | {"pass_seconds": None, "layer_seconds": None}
    monkeypatch.setattr(action, "ask_probe", lambda arguments, timeout_seconds: hidden)
    assert launch(desk, "calibrate.max_seconds=5") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "host, a layer not measured 2 ms" in told
    assert "not measured in the time it had: calibrate.max_seconds=60 may do" in told
    proposed = re.search(r"not even two steps fit calibrate.max_seconds=5; calibrate.max_seconds=(\d+) should", told)
    assert proposed is not None
    assert launch(desk, f"calibrate.max_seconds={proposed[1]}") == 0
    assert "real steps of" in capsys.readouterr().out


def test_price_is_said_first_and_a_money_budget_may_forbid_it(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """$36 an hour for 60 s are $0.60."""
    priced = ("hw.price_usd_per_hour=36", "budget.max_cost_usd=0.5")
    assert launch(desk, *priced) == ExitCode.OVER_BUDGET
    told = capsys.readouterr().out
    assert "at most $0.60" in told
    assert "does not allow $0.6" in told
    assert not desk.exists()
    assert launch(desk, *priced, "calibrate.max_seconds=30") == 0


def test_dry_run_measures_nothing(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(desk, "dry_run=true", "report=json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["found"], document["after"], document["exit_code"]) == (None, None, 0)
    assert not desk.exists()


def test_machine_that_is_not_here_cannot_be_measured(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(desk, "hw=4x4090") == ExitCode.WRONG_MACHINE
    assert "only this machine, as it is, can be measured here" in capsys.readouterr().out


def test_probe_that_fails_leaves_the_steps(desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def fails(arguments: list[str], timeout_seconds: float) -> None:
        raise subprocess.TimeoutExpired(arguments, timeout_seconds)

    monkeypatch.setattr(action, "ask_probe", fails)
    assert launch(desk, "report=json") == ExitCode.TRAINING_FAILED
    printed = capsys.readouterr()
    assert "the machine was not measured: not within calibrate.max_seconds=" in printed.err
    document = json.loads(printed.out)
    assert document["found"] is None
    assert document["actual"]["actual/n_steps_done"] == 20
    assert not (desk / "probes.jsonl").exists()


def test_plan_that_does_not_fit_is_measured_without_steps(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ("model=gpt2_124m", "data=stdlib", "model.tokenizer=byte", "model.vocab_size=256",
             "lowering.policy=refuse",
             "trainer.precision=fp32", "trainer.micro_batch_size=480", "budget.max_memory_fraction=0.1")  # fmt: skip
    assert launch(desk, *model, "report=json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["found"] is not None
    assert document["actual"] is None
    assert document["why_no_steps"]


def test_torchrun_and_other_actions_are_told(desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert main([f"runs_dir={desk}", "calibrate.max_steps=5", "dry_run=true"]) == ExitCode.CONFIG
    assert "has no effect with action=train" in capsys.readouterr().err
    assert main(["-m", "action=calibrate", "model=tiny,gpt2_10m", f"runs_dir={desk}"]) == ExitCode.CONFIG
    assert "measures one machine with one plan" in capsys.readouterr().err


def test_time_that_is_over_stops_the_trainer() -> None:
    """The timer asks by a signal, which the backend passes on; nothing stays behind."""
    import signal

    received: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    try:
        with action._stop_after(-1.0) as is_over:  # one second, at the least
            assert is_over == []
            signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
            begin = time.monotonic()
            while not received and time.monotonic() - begin < 10:
                time.sleep(0.01)
        assert is_over == [True]
        assert received == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_steps_that_were_done_in_time_count(desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Five of twenty, then the time was over: the next bill rests on five."""

    def slow(plan: Any, run_dir: Path, **options: Any) -> Outcome:
        trained(replace(plan, trainer=replace(plan.trainer, n_steps=5)), run_dir)
        time.sleep(1.2)
        return Outcome(exit_code=143, reason="SIGUSR1")

    monkeypatch.setattr(local, "run", slow)
    monkeypatch.setattr(action, "STOP_SHARE", 0.0)
    monkeypatch.setattr(action, "n_steps_within", lambda plan, seconds, max_steps: 20)
    assert launch(desk, "report=json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["why_no_steps"] is None
    assert document["after"]["step_seconds"]["mid"] == pytest.approx(STEP_SECONDS, rel=0.05)
    assert json.loads((desk / "ledger.jsonl").read_text())["plan"]["trainer"]["n_steps"] == 5


def test_short_run_is_the_same_step_and_little_else() -> None:
    plan = build_plan(model="tiny", card="cpu", n_steps=5000)
    plan = replace(plan, tracking=replace(plan.tracking, backend=TrackingBackend.wandb, mode=TrackingMode.online))
    short = shortened(plan, 20, 6.0)
    same = ("micro_batch_size", "grad_accum_steps", "tokens_per_step", "sequence_length", "precision", "compile")
    assert all(getattr(short.trainer, name) == getattr(plan.trainer, name) for name in same)
    assert (short.trainer.n_steps, short.trainer.eval_interval, short.trainer.checkpoint_interval) == (20, 0, 20)
    assert short.tracking.mode is TrackingMode.offline
    assert estimate(short).step == estimate(plan).step
    assert to_jsonable(short.model) == to_jsonable(plan.model)


def test_steps_are_as_many_as_fit_the_time() -> None:
    plan = build_plan(model="tiny", card="cpu", n_steps=5000)
    assert n_steps_within(plan, 1e6, 20) == 20
    assert n_steps_within(plan, 0.0, 20) == 0
    wall = estimate(shortened(plan, 20, 1.0)).wall.terms_seconds
    besides = sum(wall.values()) - wall["steps"]
    step = estimate(plan).step.seconds
    assert step is not None
    assert n_steps_within(plan, besides + 7.5 * 1.5 * step.mid, 20) == 7


def test_the_arithmetic_of_the_products_is_probed_too() -> None:
    rounding = {"float32_matmul_precision": Float32Matmul.high}
    for card, expected in (("a100_80gb", ["fp32", "tf32", "bf16"]), ("cpu", ["fp32", "bf16"])):
        plan = build_plan(card=card, precision=Precision.fp32, trainer=rounding)
        arguments = action._probe_arguments(plan, 1.0)
        assert arguments[arguments.index("--precisions") + 1 : arguments.index("--disk")] == expected
