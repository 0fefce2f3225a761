"""Do the meters tell the truth, and say nothing when they know nothing?"""

# ruff: noqa: TID253 - torch is what is tested here
from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from preflight.plan import RunPlan
from trainers import clocks as module
from trainers.card_meters import EnergyMeter
from trainers.clocks import StepTimer, Stopwatch
from trainers.job import Job
from trainers.memory_meters import MemoryMeter, peak_resident_bytes, resident_bytes
from trainers.meters import Meters, mfu
from trainers.pretrain import train

CPU = torch.device("cpu")


def test_stopwatch_gives_every_second_to_one_term(monkeypatch: pytest.MonkeyPatch):
    clock = iter([100.0, 103.0, 104.0, 110.0, 110.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(module.time, "time", lambda: 1002.0)
    watch = Stopwatch(started_unix=1000.0)  # two seconds before
    assert watch.lap("data") == 3.0
    watch.lap("steps")
    watch.lap("steps")
    assert watch.terms_seconds == {
        "startup": 2.0, "compile": 0.0, "steps": 7.0, "data_wait": 0.0, "evaluations": 0.0, "checkpoints": 0.0,
        "data": 3.0, "shutdown": 0.0,
    }  # fmt: skip
    assert watch.elapsed_seconds == 12.0


def test_step_timer_leaves_the_warm_up_out():
    timer = StepTimer()
    timer.seconds = [9.0, 3.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.2, 1.0]
    assert timer.median_seconds() == 1.0
    assert timer.p90_seconds() == 1.2
    assert timer.first_step_excess_seconds() == 8.0


def test_step_timer_makes_do_with_what_a_short_run_has():
    timer = StepTimer()
    assert (timer.median_seconds(), timer.p90_seconds(), timer.first_step_excess_seconds()) == (None, None, 0.0)
    timer.seconds = [4.0]
    assert (timer.median_seconds(), timer.first_step_excess_seconds()) == (4.0, 0.0)
    timer.seconds = [4.0, 1.0]
    assert (timer.median_seconds(), timer.first_step_excess_seconds()) == (1.0, 3.0)


def test_step_timer_times_what_lies_between_begin_and_end():
    timer = StepTimer()
    timer.begin()
    time.sleep(0.02)
    timer.end()
    time.sleep(0.05)
    timer.collect()
    assert timer.seconds[0] == pytest.approx(0.02, abs=0.02)


def test_peak_resident_bytes_remembers_what_was_let_go():
    before = peak_resident_bytes()
    block = torch.ones(before // 4 + 2**24)  # more than has ever been in use
    assert resident_bytes() >= block.nbytes
    del block
    assert peak_resident_bytes() > before
    assert resident_bytes() < peak_resident_bytes()


def test_memory_meter_knows_the_process_on_a_processor_and_no_allocator():
    meter = MemoryMeter(CPU)
    allocated, reserved, device = meter.peaks()
    assert (allocated, reserved) == (None, None)
    assert device is not None
    assert device >= meter.base_bytes > 0


def test_energy_meter_is_silent_without_a_counter():
    assert EnergyMeter(CPU).joules() is None


def test_mfu_is_unknown_when_the_peak_is():
    assert mfu(1e12, 2.0, 1e12) == 0.5
    assert mfu(1e12, 2.0, None) is None
    assert mfu(1e12, None, 1e12) is None


def test_actual_counts_a_compiled_first_evaluation_as_compilation(make_plan: Callable[..., RunPlan]):
    meters = Meters(time.time())
    meters.steps.seconds = [5.0, 1.0, 1.0]
    meters.evaluation_seconds = [4.0, 1.5, 1.5]
    meters.watch.terms_seconds |= {"steps": 7.0, "evaluations": 7.0}
    compiled, eager = meters._terms_seconds(is_compiled=True), meters._terms_seconds(is_compiled=False)
    assert (compiled["compile"], compiled["steps"], compiled["evaluations"]) == (6.5, 3.0, 4.5)
    assert (eager["compile"], eager["steps"], eager["evaluations"]) == (4.0, 3.0, 7.0)
    assert sum(compiled.values()) == pytest.approx(sum(eager.values()))


def test_actual_takes_the_bills_watts_when_nothing_counts_joules(
    small_plan: Callable[..., RunPlan], make_job: Callable[..., Job]
):
    actual = train(make_job(small_plan(n_steps=1), watts=3.6e6))  # one kWh a second
    assert actual.energy_kwh == pytest.approx(actual.wall_seconds)
    assert actual.co2_kg == pytest.approx(actual.energy_kwh * 0.475)
    assert not actual.energy_is_measured
