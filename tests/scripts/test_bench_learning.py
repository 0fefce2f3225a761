"""The bench that proves calibration: its machines, its arithmetic, its promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight.hw_plan import CardKind
from preflight.plan import RunPlan
from preflight.record import append_line
from scripts import bench_learning, learning_real, learning_replay, learning_simulated
from scripts.learning_real import Pair, RealRun, Shape
from scripts.simulated_machine import SimulatedMachine
from tests.conftest import build_plan

MakePlan = Callable[..., RunPlan]


@pytest.fixture(name="plans", scope="module")
def fixture_plans() -> list[RunPlan]:
    tiny = build_plan(model="tiny").model
    return [
        build_plan(model=replace(tiny, n_embd=width, d_ff=4 * width, n_layer=depth), card="cpu", n_steps=200,
                   micro_batch_size=8, sequence_length=128)
        for width, depth in ((64, 2), (128, 2), (128, 4), (192, 4), (256, 2), (256, 6), (96, 3), (160, 4), (64, 6),
                             (192, 2), (320, 2), (96, 8))
    ]  # fmt: skip


def test_simulated_runs_are_reproducible_and_their_terms_sum_to_the_wall_time(plans: list[RunPlan]) -> None:
    scenario = learning_simulated.SCENARIOS["noisy"]
    one, other = (scenario.machine(3, CardKind.cpu).run(plans[0]) for _ in range(2))
    assert one == other
    actual = one["actual"]
    terms = [
        value for name, value in actual.items() if name.startswith("actual/wall_") and name != "actual/wall_seconds"
    ]
    assert sum(terms) == pytest.approx(actual["actual/wall_seconds"])


def test_a_drifting_machine_changes_its_pace_and_a_steady_one_does_not(plans: list[RunPlan]) -> None:
    drifting, steady = SimulatedMachine(drift_sigma=0.1), SimulatedMachine()
    for machine in (drifting, steady):
        machine.run(plans[0])
    assert drifting.pace != 2.0
    assert steady.pace == 2.0


def test_bills_get_better_and_every_promise_is_told(plans: list[RunPlan]) -> None:
    bills = learning_simulated.simulate(plans, 8)
    assert {bill.n_runs for bill in bills} == set(learning_simulated.AFTER)
    assert len(bills) == 8 * 4 * 2
    error = {n: sum(b.error for b in bills if b.n_runs == n and b.quantity == "wall_seconds") for n in (0, 10)}
    assert error[10] < error[0]
    words = [text for text, _ in learning_simulated.promises(bills)]
    assert len(words) == 4  # error and coverage, of time and of memory, on processors
    assert len(learning_simulated.table(bills)) == 1 + 2 * 4


def test_few_histories_are_shown_and_not_judged(
    plans: list[RunPlan], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_learning, "_plans_of_processors", lambda: plans)
    monkeypatch.setattr(bench_learning, "_plans_of_cards", list)
    assert bench_learning.main(["--n-histories", "2"]) == 0
    assert "not judged: 2 histories are too few" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        bench_learning.main(["--n-histories", "0"])


def test_one_bad_run_is_survived(plans: list[RunPlan]) -> None:
    told = list(learning_simulated.outliers(plans, 4))
    assert [text.split(":")[0] for text, _ in told] == list(learning_simulated.HISTORIES)


def run_of(wall: tuple[float, float, float, float], peak: tuple[float, float, float, float]) -> RealRun:
    shape = Shape(n_layer=2, n_embd=64, micro_batch_size=4, sequence_length=32, n_passes=1, n_steps=10)
    pairs = [Pair(estimated=e, low=low, high=high, actual=a) for e, low, high, a in (wall, peak)]
    return RealRun(shape=shape, wall=pairs[0], peak=pairs[1], terms_seconds={"steps": (9.0, 10.0)})


def test_real_runs_are_judged_by_their_last_five_and_by_all_bands() -> None:
    bad = run_of((50.0, 40.0, 60.0, 100.0), (5e8, 4.5e8, 5.5e8, 5e8))
    good = run_of((95.0, 80.0, 120.0, 100.0), (5e8, 4.5e8, 5.5e8, 5.1e8))
    kept = dict(learning_real.verdict([bad] * 3 + [good] * 7))
    assert list(kept.values()) == [True, True, True, True]
    broken = dict(learning_real.verdict([good] * 5 + [bad] * 5))
    assert list(broken.values()) == [False, True, False, True]
    assert bench_learning.told(list(kept.items())) == 0
    assert bench_learning.told(list(broken.items())) == 1
    assert "-50.0% outside" in learning_real.line_of(bad)


def test_shapes_differ_and_every_one_is_a_command_line() -> None:
    assert len(set(learning_real.SHAPES)) == 10
    plan = bench_learning.bill(*learning_real.SHAPES[1].overrides(), "hw=cpu", "calibration=off").plan
    assert (plan.trainer.grad_accum_steps, plan.trainer.n_steps) == (2, 250)


def test_a_ledger_is_told_again_with_todays_bills(
    plans: list[RunPlan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = SimulatedMachine(pace=2.0)

    def line(n: int, **changes: Any) -> dict[str, Any]:
        return {"schema_version": 2, "run_id": f"r{n}", "name": "a", "created_at": "", "decision": "go",
                "exit_code": 0, "estimate": {}, **machine.run(plans[0]), **changes}  # fmt: skip

    for record in (line(1), line(2, actual=None), line(3)):
        append_line(tmp_path / "ledger.jsonl", record)
    assert bench_learning.main(["--ledger", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("r1")
    assert " after  0: wall_seconds" in lines[0]
    assert lines[1].startswith("r3")
    assert " after  1: wall_seconds" in lines[1]
    assert any(text.startswith("step_seconds") and "of the last 2" in text for text in lines)
    assert learning_replay.N_LAST == 5
