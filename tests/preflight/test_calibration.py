"""Bills learn from runs: simulated machines whose truth is known."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from simulated_machine import SimulatedMachine, cpu_plan

from conf.choices import TrackingBackend
from preflight.calibration.calibrate import calibrate
from preflight.calibration.evidence import sound_numbers
from preflight.estimate import estimate
from preflight.memory.peak import estimate_memory
from preflight.plan import NO_CALIBRATION, Precision, RunPlan
from preflight.step_time.step import estimate_step_time
from preflight.units import MIB

MakePlan = Callable[..., RunPlan]


def billed_step_error(machine: SimulatedMachine, plan: RunPlan, records: Sequence[dict[str, Any]]) -> float:
    """|log(bill / truth)| of the step time."""
    calibrated = replace(plan, calibration=calibrate(plan, records, "sha"))
    seconds = estimate_step_time(calibrated).seconds
    assert seconds is not None
    return abs(math.log(seconds.mid / machine.step_seconds(plan)))


@pytest.fixture
def plan(make_plan: MakePlan) -> RunPlan:
    return cpu_plan(make_plan)


def test_calibrate_knows_nothing_from_an_empty_ledger(plan: RunPlan) -> None:
    assert calibrate(plan, [], None) == NO_CALIBRATION


def test_one_run_of_the_same_plan_makes_the_next_bill_right(plan: RunPlan) -> None:
    machine = SimulatedMachine(pace=2.0)
    calibration = calibrate(plan, [machine.run(plan)], "abc")
    bill = estimate(replace(plan, calibration=calibration))
    assert bill.step.seconds is not None
    assert bill.step.seconds.mid == pytest.approx(machine.step_seconds(plan), rel=0.02)
    assert bill.memory.device.mid == pytest.approx(machine.peak_bytes(plan), rel=0.02)
    assert bill.wall.terms_seconds["startup"] == pytest.approx(9.0, rel=0.1)
    assert (calibration.n_runs, calibration.ledger_sha256) == (1, "abc")
    assert calibration.factors["step_seconds"].scope == "same plan"


def test_a_plan_of_another_length_is_the_same_plan(plan: RunPlan) -> None:
    longer = replace(plan, trainer=replace(plan.trainer, n_steps=5000, n_warmup_steps=100, eval_interval=1000))
    factor = calibrate(longer, [SimulatedMachine().run(plan)], None).factors["step_seconds"]
    assert factor.scope == "same plan"


def test_another_plan_of_the_machine_helps_less_and_says_so(make_plan: MakePlan, plan: RunPlan) -> None:
    machine = SimulatedMachine(pace=2.0)
    other = cpu_plan(make_plan, n_embd=64, n_layer=2, micro_batch_size=64)
    same = calibrate(plan, [machine.run(plan)], None).factors["step_seconds"]
    elsewhere = calibrate(plan, [machine.run(other)], None).factors["step_seconds"]
    assert elsewhere.scope == "same machine"
    assert 1.6 < elsewhere.value < same.value < 2.01
    assert elsewhere.high / elsewhere.low > same.high / same.low


def test_own_runs_outweigh_any_number_of_others(make_plan: MakePlan, plan: RunPlan) -> None:
    slow, others_machine = SimulatedMachine(pace=1.3), SimulatedMachine(seed=1, pace=1.0, plan_sigma=0.15)
    others = [others_machine.run(cpu_plan(make_plan, n_embd=64 * i)) for i in range(1, 12) if i != 4]
    once = calibrate(plan, [*others, slow.run(plan)], None).factors["step_seconds"]
    twice = calibrate(plan, [*others, slow.run(plan), slow.run(plan)], None).factors["step_seconds"]
    assert once.value == pytest.approx(1.3, rel=0.08)
    assert twice.value == pytest.approx(1.3, rel=0.04)


def test_a_single_run_against_all_others_is_not_believed_until_a_second_one_confirms_it(
    make_plan: MakePlan, plan: RunPlan
) -> None:
    machine = SimulatedMachine(pace=1.0)
    others = [machine.run(cpu_plan(make_plan, n_embd=64 * i)) for i in range(1, 12) if i != 4]
    bad = machine.run(plan, disturbed=3.0)
    assert calibrate(plan, [*others, bad], None).factors["step_seconds"].value < 1.6
    assert calibrate(plan, [*others, bad, bad], None).factors["step_seconds"].value > 2.4


CASES = {
    "another processor": lambda plan: replace(
        plan, hw=replace(plan.hw, card=replace(plan.hw.card, label="other CPU, 2 cores"))
    ),
    "other cores": lambda plan: replace(plan, hw=replace(plan.hw, n_cpu_cores=4)),
    "another torch": lambda plan: replace(plan, software=replace(plan.software, torch="2.12.0")),
    "another precision": lambda plan: replace(plan, trainer=replace(plan.trainer, precision=Precision.fp32)),
    "compiled": lambda plan: replace(plan, trainer=replace(plan.trainer, compile=True)),
}


@pytest.mark.parametrize("case", CASES)
def test_calibration_does_not_cross(case: str, plan: RunPlan) -> None:
    assert calibrate(plan, [SimulatedMachine().run(CASES[case](plan))], "x").factors == {}


def test_builds_of_one_torch_release_are_one(plan: RunPlan) -> None:
    built = replace(plan, software=replace(plan.software, torch="2.13.0+cpu"))
    assert calibrate(plan, [SimulatedMachine().run(built)], None).n_runs == 1


def test_a_card_matches_by_its_catalog_name_on_any_machine(make_plan: MakePlan) -> None:
    plan = make_plan(card="4090")
    record = SimulatedMachine().run(replace(plan, hw=replace(plan.hw, n_cpu_cores=64)))
    assert calibrate(plan, [record], None).factors["step_seconds"].scope == "same plan"
    assert calibrate(make_plan(card="a100_80gb"), [record], None).n_runs == 0


def test_runs_that_stopped_in_the_warm_up_and_refused_ones_do_not_count(plan: RunPlan) -> None:
    machine = SimulatedMachine()
    refused = {**machine.run(plan), "actual": None}
    assert calibrate(plan, [machine.run(plan, n_steps_done=3), refused], None).n_runs == 0
    assert calibrate(plan, [machine.run(plan, n_steps_done=60)], None).n_runs == 1


def test_a_run_that_stopped_early_says_nothing_of_evaluations(plan: RunPlan) -> None:
    machine = SimulatedMachine()
    stopped = machine.run(plan, n_steps_done=60)
    stopped["actual"]["actual/wall_evaluations_seconds"] = 1.0
    assert "evaluation_seconds" not in calibrate(plan, [stopped], None).factors
    whole = machine.run(plan)
    whole["actual"]["actual/wall_evaluations_seconds"] = 1.0
    assert "evaluation_seconds" in calibrate(plan, [whole], None).factors


def test_records_of_another_shape_are_passed_over(plan: RunPlan) -> None:
    good = SimulatedMachine().run(plan)
    foreign = [{}, {"plan": {}, "actual": {"actual/step_seconds": 1.0}}, {"plan": good["plan"], "actual": {"x": 1}}]
    assert calibrate(plan, [*foreign, good], None).n_runs == 1


def test_a_field_that_older_records_lack_is_filled_from_the_plan(plan: RunPlan) -> None:
    record = SimulatedMachine().run(plan)
    del record["plan"]["trainer"]["log_interval"]
    assert calibrate(plan, [record], None).n_runs == 1


@pytest.mark.parametrize("position", [1, 2, 3])
def test_one_outlier_is_survived_wherever_it_comes(plan: RunPlan, position: int) -> None:
    machine = SimulatedMachine(pace=1.5, run_sigma=0.02)
    records = [machine.run(plan, disturbed=4.0 if i == position else 1.0) for i in range(4)]
    assert billed_step_error(machine, plan, records) < 0.06


def test_one_bad_run_after_a_good_one_hardly_moves_the_bill(plan: RunPlan) -> None:
    machine = SimulatedMachine(pace=1.0)
    assert billed_step_error(machine, plan, [machine.run(plan), machine.run(plan, disturbed=3.0)]) < 0.10


def test_a_machine_that_has_become_slower_is_believed_after_a_few_runs(plan: RunPlan) -> None:
    before, after = SimulatedMachine(pace=1.0, run_sigma=0.02), SimulatedMachine(pace=1.6, run_sigma=0.02)
    records = [before.run(plan) for _ in range(6)] + [after.run(plan) for _ in range(4)]
    assert billed_step_error(after, plan, records) < 0.06


def test_the_error_of_bills_of_new_plans_shrinks_with_the_number_of_runs(make_plan: MakePlan) -> None:
    shapes = [
        (64, 2),
        (128, 2),
        (128, 6),
        (192, 4),
        (256, 2),
        (256, 8),
        (320, 4),
        (384, 6),
        (448, 4),
        (512, 3),
        (96, 8),
    ]
    plans = [cpu_plan(make_plan, n_embd, n_layer) for n_embd, n_layer in shapes]
    random.Random(0).shuffle(plans)
    errors: dict[int, list[float]] = {0: [], 1: [], 3: [], 10: []}
    for seed in range(30):
        machine = SimulatedMachine(seed=seed, pace=math.exp(random.Random(-1 - seed).gauss(0, 0.5)), plan_sigma=0.1,
                                   run_sigma=0.03)  # fmt: skip
        records = [machine.run(plan) for plan in plans[:-1]]
        for n_runs, found in errors.items():
            found.append(billed_step_error(machine, plans[-1], records[:n_runs]))
    none, one, three, ten = (statistics.mean(errors[n_runs]) for n_runs in errors)
    assert none > 2 * one
    assert one * 1.1 > three
    assert one > ten
    assert ten < 0.11


def test_the_band_covers_about_eight_in_ten(make_plan: MakePlan) -> None:
    plans = [cpu_plan(make_plan, n_embd) for n_embd in (64, 128, 192, 256, 320, 384)]
    covered = []
    for seed in range(20):
        machine = SimulatedMachine(seed=seed, pace=math.exp(random.Random(-1 - seed).gauss(0, 0.5)), plan_sigma=0.1,
                                   run_sigma=0.08)  # fmt: skip
        records: list[dict[str, Any]] = []
        for plan in plans:
            bill = estimate_step_time(replace(plan, calibration=calibrate(plan, records, None))).seconds
            records.append(machine.run(plan))
            assert bill is not None
            if len(records) > 1:
                covered.append(bill.low <= records[-1]["actual"]["actual/step_seconds"] <= bill.high)
    assert 0.7 <= statistics.mean(covered) <= 0.95


def test_two_sizes_tell_the_process_from_what_grows_with_tokens(make_plan: MakePlan) -> None:
    machine = SimulatedMachine(base_bytes=460 * MIB, tokens_factor=1.2)
    small, large = cpu_plan(make_plan, micro_batch_size=1), cpu_plan(make_plan, micro_batch_size=64)
    between = cpu_plan(make_plan, micro_batch_size=16)
    calibration = calibrate(between, [machine.run(small), machine.run(large)], None)
    assert calibration.factors["activation_bytes"].value == pytest.approx(1.2, rel=0.04)
    assert calibration.factors["base_memory_bytes"].value == pytest.approx(460 * MIB, rel=0.08)
    bill = estimate_memory(replace(between, calibration=calibration))
    assert bill.device.mid == pytest.approx(machine.peak_bytes(between), rel=0.03)


def test_the_memory_band_holds_the_truth_and_narrows(make_plan: MakePlan, plan: RunPlan) -> None:
    machine = SimulatedMachine(base_bytes=450 * MIB, tokens_factor=1.1)
    widths = []
    for records in ([], [machine.run(cpu_plan(make_plan, n_embd=384))], [machine.run(plan)] * 3):
        bill = estimate_memory(replace(plan, calibration=calibrate(plan, records, None))).device
        assert not records or bill.low <= machine.peak_bytes(plan) <= bill.high
        widths.append(bill.high - bill.low)
    assert widths == sorted(widths, reverse=True)


def test_a_card_says_reserved_and_context_apart(make_plan: MakePlan) -> None:
    plan, machine = make_plan(card="4090"), SimulatedMachine(tokens_factor=0.8)
    record = machine.run(plan)
    reserved = machine.peak_bytes(plan)
    record["actual"] |= {"actual/peak_reserved_bytes": reserved, "actual/peak_device_bytes": reserved + 600 * MIB}
    calibration = calibrate(plan, [record], None)
    assert calibration.factors["base_memory_bytes"].value == pytest.approx(600 * MIB)
    bill = estimate_memory(replace(plan, calibration=calibration))
    assert bill.reserved.mid == pytest.approx(reserved, rel=0.01)
    assert bill.device.mid == pytest.approx(reserved + 600 * MIB, rel=0.01)


def test_watts_are_learnt_only_where_the_cards_counted_them(make_plan: MakePlan) -> None:
    plan = make_plan(card="4090")
    record = SimulatedMachine().run(plan)
    record["actual"] |= {"actual/energy_kwh": 0.4, "actual/wall_seconds": 3600.0}
    assert "watts" not in calibrate(plan, [record], None).factors
    record["actual"]["actual/energy_is_measured"] = True
    assert calibrate(plan, [record], None).factors["watts"].value == pytest.approx(400.0, rel=0.05)


@pytest.mark.parametrize("pace", [0.05, 20.0])
def test_a_formula_that_is_far_off_on_a_machine_does_not_hold_the_bill_back(
    make_plan: MakePlan, plan: RunPlan, pace: float
) -> None:
    machine = SimulatedMachine(pace=pace)
    own = calibrate(plan, [machine.run(plan)], None).factors["step_seconds"]
    other = calibrate(plan, [machine.run(cpu_plan(make_plan, n_embd=192))], None).factors["step_seconds"]
    assert own.value == pytest.approx(pace, rel=0.02)
    assert other.value == pytest.approx(pace, rel=0.15)


def part(machine: SimulatedMachine, plan: RunPlan, first_step: int, n_steps_done: int) -> dict[str, Any]:
    """A segment with every term measured."""
    record = machine.run(plan, first_step=first_step, n_steps_done=n_steps_done)
    names = ("evaluations", "checkpoints", "compile", "shutdown")
    record["actual"] |= {f"actual/wall_{name}_seconds": 3.0 for name in names}
    return record


PARTS = {
    "stopped": (0, 60, {"step_seconds", "startup_seconds", "compile_seconds", "shutdown_seconds"}),
    "resumed": (60, 200, {"step_seconds", "compile_seconds", "shutdown_seconds"}),
    "whole": (0, 200, {"step_seconds", "startup_seconds", "compile_seconds", "shutdown_seconds",
                       "evaluation_seconds", "checkpoint_seconds"}),
}  # fmt: skip


@pytest.mark.parametrize("case", PARTS)
def test_a_part_of_a_run_tells_only_what_does_not_depend_on_its_length(case: str, plan: RunPlan) -> None:
    first_step, n_steps_done, told = PARTS[case]
    factors = calibrate(plan, [part(SimulatedMachine(), plan, first_step, n_steps_done)], None).factors
    assert set(factors) == told | {"activation_bytes", "base_memory_bytes"}


def test_a_part_of_a_compiled_run_may_have_compiled_no_evaluation(plan: RunPlan) -> None:
    compiled = replace(plan, trainer=replace(plan.trainer, compile=True))
    machine = SimulatedMachine()
    assert "compile_seconds" not in calibrate(compiled, [part(machine, compiled, 0, 60)], None).factors
    assert "compile_seconds" in calibrate(compiled, [part(machine, compiled, 0, 200)], None).factors


def test_a_resumed_part_counts_by_its_own_steps(plan: RunPlan) -> None:
    machine = SimulatedMachine()
    assert calibrate(plan, [part(machine, plan, 195, 200)], None).n_runs == 0
    assert calibrate(plan, [part(machine, plan, 180, 200)], None).n_runs == 1


def test_a_run_that_was_killed_has_no_terms_and_teaches_none(plan: RunPlan) -> None:
    killed = SimulatedMachine().run(plan, n_steps_done=60)
    killed["actual"] = {name: None for name in killed["actual"]} | {
        "actual/n_steps_done": 60, "actual/first_step": 0
    }  # fmt: skip
    assert calibrate(plan, [killed], None).factors == {}


def test_older_records_do_not_say_that_they_are_whole(plan: RunPlan) -> None:
    record = part(SimulatedMachine(), plan, 0, 200)
    del record["actual"]["actual/first_step"]
    factors = calibrate(plan, [record], None).factors
    assert "step_seconds" in factors
    assert "evaluation_seconds" not in factors


def test_the_end_of_a_run_is_learnt_from_runs_that_are_tracked_alike(plan: RunPlan) -> None:
    tracked = replace(plan, tracking=replace(plan.tracking, backend=TrackingBackend.wandb))
    record = part(SimulatedMachine(), tracked, 0, 200)
    assert "shutdown_seconds" not in calibrate(plan, [record], None).factors
    bill = estimate(replace(tracked, calibration=calibrate(tracked, [record] * 3, None)))
    assert bill.wall.terms_seconds["shutdown"] == pytest.approx(3.0, rel=0.15)


def test_an_end_that_takes_no_time_is_learnt_from_one_run(plan: RunPlan) -> None:
    tracked = replace(plan, tracking=replace(plan.tracking, backend=TrackingBackend.wandb))
    record = part(SimulatedMachine(), tracked, 0, 200)
    record["actual"]["actual/wall_shutdown_seconds"] = 0.017
    bill = estimate(replace(tracked, calibration=calibrate(tracked, [record], None)))
    assert bill.wall.terms_seconds["shutdown"] == pytest.approx(0.017, rel=0.3)


@pytest.mark.parametrize("leaf", ["step_seconds", "peak_device_bytes", "wall_startup_seconds", "n_steps_done"])
@pytest.mark.parametrize("nonsense", [-1, 0, math.nan, math.inf, "text", None, [1], 10**400, 1e-320])
def test_numbers_that_nobody_measured_are_passed_over(plan: RunPlan, leaf: str, nonsense: Any) -> None:
    machine = SimulatedMachine(pace=2.0)
    sound = [machine.run(plan), machine.run(plan)]
    broken = machine.run(plan)
    broken["actual"][f"actual/{leaf}"] = nonsense
    calibration = calibrate(plan, [*sound, broken], "sha")
    without = calibrate(plan, sound, "sha")
    assert calibration.n_runs == (2 if leaf == "n_steps_done" else 3)
    if leaf == "step_seconds":
        assert calibration.factors["step_seconds"] == without.factors["step_seconds"]
    estimate(replace(plan, calibration=calibration))


def test_sound_numbers_keeps_what_can_have_been_measured() -> None:
    flat = {"actual/first_step": 0, "actual/step_seconds": 0.5, "actual/energy_is_measured": True, "actual/mfu": 0}
    assert sound_numbers(flat) == {"first_step": 0, "step_seconds": 0.5, "energy_is_measured": True}


@pytest.mark.parametrize("disturbed", [1.6, 2.5, 4.0])
def test_a_bad_run_makes_the_bill_of_its_plan_no_worse_than_it_was(
    make_plan: MakePlan, plan: RunPlan, disturbed: float
) -> None:
    machine = SimulatedMachine(pace=1.0, plan_sigma=0.05, run_sigma=0.02)
    others = [machine.run(cpu_plan(make_plan, n_embd=64 * i)) for i in (2, 3, 5, 6)]
    bill = replace(plan, calibration=calibrate(plan, [*others, machine.run(plan, disturbed=disturbed)], None))
    seconds = estimate_step_time(bill).seconds
    assert seconds is not None
    assert seconds.mid < 1.35 * machine.step_seconds(plan)
    assert seconds.high > 1.1 * machine.step_seconds(plan)  # and it says that it is not sure


def test_a_run_that_is_faster_than_others_let_expect_was_not_disturbed(make_plan: MakePlan, plan: RunPlan) -> None:
    machine = SimulatedMachine(pace=1.0)
    others = [machine.run(cpu_plan(make_plan, n_embd=64 * i)) for i in (2, 3, 5, 6)]
    factor = calibrate(plan, [*others, machine.run(plan, disturbed=0.6)], None).factors["step_seconds"]
    assert factor.value < 0.8
