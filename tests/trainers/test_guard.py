"""Told in time and stopped in time: the guard in real runs of a blink, and with clocks that are made up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.choices import Enforce
from preflight.plan import RunPlan
from preflight.spent import read_segments
from tests.trainers.stopping_at import StopAt
from trainers import guard as module
from trainers.guard import Guard
from trainers.job import Job
from trainers.known import n_to_come
from trainers.meters import Meters
from trainers.pretrain import train
from trainers.stopping import REASONS

Plans = Callable[..., RunPlan]
Jobs = Callable[..., Job]


class Pinboard:
    """A tracker that keeps alerts."""

    def __init__(self) -> None:
        self.alerts: list[tuple[str, str]] = []

    def alert(self, title: str, text: str) -> None:
        self.alerts.append((title, text))


class Run:
    """A run whose clock and steps are told: a look after every step, all steps alike."""

    def __init__(self, job: Job, **estimate: float) -> None:
        flat = {f"estimate/{leaf}": value for leaf, value in estimate.items()}
        self.job = replace(job, estimate=flat)
        self.meters, self.said = Meters(time.time()), list[str]()
        self.meters.attach(__import__("torch").device("cpu"))
        self.meters.tracker = self.board = Pinboard()  # type: ignore[assignment]
        self.guard = Guard(self.job, self.meters, self.said.append, is_first_rank=True)
        self.step = 0

    def steps(self, n: int, seconds: float) -> str:
        """The reason to stop, "" for none; `n` steps at most."""
        for _ in range(n):
            self.step += 1
            self.meters.watch.terms_seconds["steps"] += seconds
            reason = REASONS[self.guard.vote(self.step)]
            self.meters.steps._note(seconds)
            self.guard.look(self.step)
            if reason:
                return reason
        return ""


@pytest.fixture
def run_of(small_plan: Plans, make_job: Jobs, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """A thousand steps, saved and evaluated at the end only, within `budget`, on a machine that nobody else uses."""
    monkeypatch.setattr("trainers.processor_meter._waited_seconds", lambda: None)

    def build(*, estimate: dict[str, float] | None = None, job: dict[str, Any] | None = None, **budget: Any) -> Run:
        trainer = {"eval_interval": 0, "checkpoint_interval": 1000}
        plan = small_plan(n_steps=1000, trainer=trainer, budget={"max_hours": None} | budget)
        return Run(make_job(plan, **job or {}), **estimate or {})

    return build


def test_guard_stops_when_the_hours_are_used_up(run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module.Guard, "_hold_against_budgets", lambda *_: None)  # no forecast
    run = run_of(max_hours=0.1)
    assert run.steps(1000, 1.0) == "budget"
    assert 353 <= run.step <= 359  # 360 seconds, of which a few went before the first step, and one step and a save
    assert run.guard.why.startswith("budget.max_hours=0.1 is used up: 6.0 min")


def test_guard_tells_within_a_minute_and_stops_when_it_lasts(run_of: Callable[..., Run]):
    run = run_of(max_hours=0.1)  # a thousand seconds are 0.28 h
    assert run.steps(1000, 1.0) == "budget"
    assert run.step < 60
    assert "by the forecast the run takes 17 min" in run.said[0]
    assert "of budget.max_hours=0.1; it stops in 20 s unless that changes" in run.said[0]
    assert run.board.alerts[0][0] == "Budget will be broken"
    assert run.guard.why.startswith("by the forecast the run takes")
    assert run.guard.remedy.startswith("budget.max_hours=0.3")


def test_guard_only_warns_when_told_so(run_of: Callable[..., Run]):
    run = run_of(max_hours=0.1, enforce=Enforce.warn)
    assert run.steps(500, 1.0) == ""
    assert len(run.said) == len(run.board.alerts) == 2  # that it will be broken, that it is used up; each once
    assert all(line.endswith("it goes on (budget.enforce=warn)") for line in run.said)


def test_guard_forgives_a_slow_start(run_of: Callable[..., Run]):
    run = run_of(max_hours=0.35)
    assert run.steps(15, 2.0) == ""  # as if it took 0.55 h
    assert "it stops in" in run.said[0]
    assert run.steps(950, 1.0) == ""


@pytest.mark.parametrize(
    ("budget", "why"),
    [({"max_cost_usd": 0.3}, "budget.max_cost_usd=0.3"), ({"max_energy_kwh": 0.1}, "budget.max_energy_kwh=0.1")],
)
def test_guard_counts_money_and_energy(run_of: Callable[..., Run], budget: dict[str, float], why: str):
    run = run_of(job={"usd_per_hour": 3.6, "watts": 1000.0}, **budget)  # a dollar, a quarter of a kWh
    assert run.steps(1000, 1.0) == "budget"
    assert why in run.guard.why


def test_guard_stops_before_a_deadline(run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch):
    now = time.time()
    run = run_of(deadline="noon", deadline_unix_seconds=now + 1e6)
    assert run.steps(20, 1.0) == ""
    run.guard.job = replace(
        run.job, plan=replace(run.job.plan, budget=replace(run.job.plan.budget, deadline_unix_seconds=now + 0.2))
    )  # fmt: skip  a save takes longer
    assert run.steps(1, 1.0) == "budget"
    assert run.guard.why == "budget.deadline=noon has come"


def test_guard_stops_before_the_machine_goes(run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 60))
    run = run_of(enforce=Enforce.warn)  # it is no budget
    assert run.steps(20, 1.0) == ""
    run.meters.checkpoint_seconds.append(60.0)  # saves take a minute
    assert run.steps(1, 1.0) == "time limit"
    assert run.guard.why == "the time limit of Slurm job 5 is near"


def test_guard_holds_measured_memory_against_the_budget(run_of: Callable[..., Run]):
    run = run_of(job={"usable_bytes": 2**20})
    assert run.steps(20, 1.0) == "budget"
    assert run.step <= 10
    assert "of the 1 MiB that budget.max_memory_fraction=0.95 allows" in run.guard.why
    assert run.guard.remedy == "budget.enforce=warn"


def test_guard_says_once_when_the_run_leaves_its_bill(run_of: Callable[..., Run]):
    bill = {"wall_seconds": 100.0, "wall_seconds_low": 80.0, "wall_seconds_high": 130.0, "wall_startup_seconds": 5.0,
            "wall_steps_seconds": 95.0, "step_seconds": 0.095}  # fmt: skip
    run = run_of(estimate=bill)
    assert run.steps(50, 1.0) == ""
    (line,) = run.said
    assert line.startswith("the run takes longer than its bill: 17 min (")
    assert "instead of 80 s to 2.2 min; likely cause: a step takes 1.00 s, the bill said 95 ms" in line
    assert run.board.alerts == [("Outside the bill's band", line)]


def test_guard_says_as_well_when_the_run_is_faster_than_its_bill(run_of: Callable[..., Run]):
    run = run_of(estimate={"wall_seconds": 9e4, "wall_seconds_low": 8e4, "wall_seconds_high": 1e5})
    assert run.steps(50, 1.0) == ""
    (line,) = run.said
    assert line.startswith("the run takes less time than its bill: 17 min (")


def test_guard_is_silent_while_bill_and_forecast_agree(run_of: Callable[..., Run]):
    run = run_of(estimate={"wall_seconds": 1000.0, "wall_seconds_low": 800.0, "wall_seconds_high": 1300.0})
    assert run.steps(999, 1.0) == ""
    assert run.said == []


def test_an_evaluation_that_is_due_counts_before_it_is_run(small_plan: Plans, make_job: Jobs):
    plan = small_plan(n_steps=1000, trainer={"eval_interval": 10}, budget={"max_hours": 105 / 3600})
    run = Run(make_job(plan))
    run.meters.evaluation_seconds = [60.0, 60.0]
    run.guard._hold_against_budgets = lambda *_: None  # type: ignore[method-assign]
    assert run.steps(1000, 1.0) == "budget"
    assert run.step == 50  # the evaluation would take it to 111 seconds


def test_a_resumed_run_counts_what_was_spent(small_plan: Plans, make_job: Jobs):
    plan = small_plan(n_steps=8, budget={"max_hours": None})
    job = make_job(plan, stop=type("Asked", (), {"requested": "SIGTERM"})())
    first = train(job)
    segments = read_segments(job.run_dir)
    assert segments is not None
    assert segments[0].wall_seconds == pytest.approx(first.wall_seconds, abs=0.2)
    assert segments[0].cost_usd == pytest.approx(first.cost_usd, abs=0.001)
    limit = (segments[0].wall_seconds + 0.001) / 3600  # a start takes longer
    again = replace(plan, budget=replace(plan.budget, max_hours=limit))
    second = train(replace(job, plan=again, resume=True, stop=Job.__dataclass_fields__["stop"].default_factory(),
                           started_unix=time.time()))  # fmt: skip
    assert (second.exit_code, second.n_steps_done, second.first_step) == (6, 2, 1)
    after = read_segments(job.run_dir)
    assert after is not None
    assert [segment.started_unix_seconds for segment in after] == sorted(
        {job.started_unix, after[1].started_unix_seconds}
    )


def test_train_says_how_a_stopped_run_goes_on(small_plan: Plans, make_job: Jobs):
    job = make_job(small_plan(n_steps=50, budget={"max_hours": 1e-6}))
    assert train(job).exit_code == 6
    said = job.progress.getvalue()  # type: ignore[attr-defined]
    assert "stopped after step 1 (budget.max_hours=1e-06 is used up: " in said
    assert f"To go on: python launch.py resume={job.run_dir} budget.max_hours=null" in said
    asked = make_job(small_plan(n_steps=50), "asked", stop=StopAt(1, "SIGTERM"))
    train(asked)
    said = asked.progress.getvalue()  # type: ignore[attr-defined]
    assert said.endswith("stopped after step 1 (SIGTERM)\n")  # launch.py says how it goes on


def test_train_writes_its_forecast_beside_the_metrics(small_plan: Plans, make_job: Jobs):
    job = make_job(small_plan(n_steps=20, trainer={"log_interval": 5}))
    actual = train(job)
    lines = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]
    logged = {line["step"]: line for line in lines if "actual/step_seconds" in line}
    assert list(logged) == [1, 5, 10, 15, 20]
    assert "forecast/wall_seconds" not in logged[5]  # nothing has settled
    for step in (10, 15):
        edges = [logged[step][f"forecast/wall_seconds{edge}"] for edge in ("_low", "", "_high")]
        assert edges == sorted(edges)
        assert edges[0] > logged[step]["actual/wall_seconds"]
    assert actual.wall_seconds is not None
    assert logged[15]["forecast/wall_seconds"] == pytest.approx(actual.wall_seconds, rel=0.5)


def test_guard_looks_often_at_first_however_seldom_lines_are_printed(
    small_plan: Plans, make_job: Jobs, monkeypatch: pytest.MonkeyPatch
):
    seen: list[int] = []
    look = Guard.look
    monkeypatch.setattr(Guard, "look", lambda self, step: (seen.append(step), look(self, step)))
    actual = train(make_job(small_plan(n_steps=20, trainer={"log_interval": 20, "eval_interval": 0})))
    assert seen == [*range(1, 11), 16, 20]
    assert actual.early_peaks_bytes["step_2_peak_device_bytes"] is not None
    assert actual.early_peaks_bytes["evaluation_peak_device_bytes"] is not None
    assert (actual.logging_seconds or 0) > 0


def test_guard_survives_a_full_disk(
    small_plan: Plans, make_job: Jobs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainers.spent_book.write_segments", full)
    monkeypatch.setattr("trainers.spent_book.INTERVAL_SECONDS", 0.0)
    assert train(make_job(small_plan())).exit_code == 0
    assert capsys.readouterr().err.count("spent.json cannot be written") == 1


def test_a_damaged_book_is_told(small_plan: Plans, make_job: Jobs, capsys: pytest.CaptureFixture[str]):
    job = make_job(small_plan())
    Path(job.run_dir / "spent.json").write_text("{")
    train(replace(job, resume=True))
    assert "what earlier segments have used is not counted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("n_steps", "step", "interval", "expected"),
    [(100, 0, 10, 10), (100, 95, 10, 1), (95, 90, 10, 1), (95, 0, 10, 10), (100, 100, 10, 0), (100, 50, 0, 1)],
)
def test_n_to_come_counts_the_one_at_the_end(n_steps: int, step: int, interval: int, expected: int):
    assert n_to_come(n_steps, step, interval) == expected
