"""Budgets held against numbers that are done in the head; see simple_sums."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simple_sums import simple_estimate, use_simple_sums

from conf.choices import JudgeOn, PolicyChoice
from preflight.units import GIB
from preflight.verdict.judge import Change, Severity, violations, warnings
from preflight.verdict.needs import broken_budgets


@pytest.fixture(autouse=True)
def _simple(monkeypatch):
    use_simple_sums(monkeypatch)


def one_violation(plan):
    (violation,) = violations(plan, simple_estimate(plan))
    return violation


def on_card_with(plan, memory_bytes):
    return replace(plan, hw=replace(plan.hw, card=replace(plan.hw.card, memory_bytes=memory_bytes)))


def test_violations_is_empty_when_every_budget_holds(make_plan):
    plan = make_plan(n_steps=1000, budget={"max_hours": 2.0, "max_cost_usd": 2.0, "max_energy_kwh": 1.0})
    assert violations(plan, simple_estimate(plan)) == ()


def test_violations_judges_memory_on_the_high_edge(make_plan):
    # 12 sequences of 0.5 GiB and 480 MB of states: 6.447 GiB in the middle, 7.09 GiB at the high edge.
    plan = make_plan(micro_batch_size=12, budget={"max_memory_fraction": 1.0})
    assert broken_budgets(on_card_with(plan, int(7.2 * GIB)), simple_estimate(on_card_with(plan, int(7.2 * GIB)))) == ()
    violation = one_violation(on_card_with(plan, 7 * GIB))
    assert violation.budget == "memory"
    assert violation.need == pytest.approx((6 * GIB + 480e6) * 1.1)
    assert violation.limit == 7 * GIB


def test_violations_of_memory_names_path_value_need_limit_and_the_size_that_fits(make_plan):
    plan = make_plan(micro_batch_size=60, lowering={"policy": PolicyChoice.refuse})
    violation = one_violation(plan)
    assert violation.message == (
        "trainer.micro_batch_size=60 needs up to 33.5 GiB per rank in backward (expected 30.4 GiB); "
        "RTX 4090 24 GB allows 22.3 GiB (23.5 GiB x 0.95)."
    )
    assert violation.fix == "trainer.micro_batch_size=30, or let the launcher choose: lowering.policy=auto"


def deep(make_plan, n_layer):
    return replace(make_plan().model, name="deep", n_layer=n_layer)  # 10M parameters a layer


def test_violations_of_memory_offers_the_nearest_plan_when_not_even_one_sequence_fits(make_plan):
    near = (change("trainer.activation_checkpointing=full"), change("trainer.micro_batch_size=4"))
    # 96 layers: 3.6 GiB and 4 GiB a sequence in the simple sums, on a card of 7 GiB
    plan = make_plan(
        model=deep(make_plan, 96), micro_batch_size=8, budget={"max_hours": None, "max_memory_fraction": 0.3}
    )
    (violation,) = violations(plan, simple_estimate(plan), nearest=lambda budget: near)
    assert violation.fix == "trainer.activation_checkpointing=full trainer.micro_batch_size=4"
    assert violation.nearest == near
    assert one_violation(plan).fix.startswith("a card with at least")


def test_violations_of_memory_says_when_a_smaller_model_is_taken(make_plan):
    near = (change("lowering.allow_model=true"),)
    fixes = []
    for max_hours in (None, 0.001):
        budget = {"max_hours": max_hours, "max_memory_fraction": 0.3}
        plan = make_plan(model=deep(make_plan, 96), micro_batch_size=8, budget=budget)
        fixes.append(violations(plan, simple_estimate(plan), nearest=lambda budget: near)[0].fix)
    assert fixes == ["lowering.allow_model=true", "lowering.allow_model=true (taken once the other budgets hold)"]


def change(pin):
    return Change(rung="", field="", old="", new="", reason="", pin=pin)


def test_budgets_of_disk_and_host_memory_are_judged_when_given(make_plan):
    # 120M parameters: 1.4 GiB a checkpoint, three of them 4.0 GiB; 1 GiB of host memory (simple sums)
    plan = make_plan(budget={"max_disk_bytes": 3 * GIB, "max_host_memory_bytes": GIB // 2})
    disk, host = violations(plan, simple_estimate(plan))
    assert disk.message == "gpt2_124m on 1x4090 takes 4.0 GiB on the disk of budget.max_disk_gib=3."
    assert disk.fix == "budget.max_disk_gib=4.1 or trainer.keep_checkpoints=1"
    assert host.message.endswith("takes 1.0 GiB of host memory on each node of budget.max_host_memory_gib=0.5.")
    assert host.fix == "budget.max_host_memory_gib=1"


def test_ranks_on_a_processor_live_in_host_memory(make_plan):
    # 2 ranks of 0.45 GiB + 12 x 0.5 GiB, the high edge 10 % above: 14.2 GiB; passes of 6 take 7.6
    plan = make_plan(card="cpu", n_gpus=2, budget={"max_host_memory_bytes": 8 * GIB, "max_hours": None})
    (host,) = violations(plan, simple_estimate(plan))
    assert host.need == pytest.approx(14.2 * GIB, rel=0.01)
    assert host.fix == "budget.max_host_memory_gib=15 or trainer.micro_batch_size=6"


def test_violations_of_memory_says_that_no_batch_helps_when_the_states_alone_do_not_fit(make_plan):
    # 3.2e9 parameters x 16 bytes = 47.7 GiB on a card of 23.5 GiB
    plan = make_plan(model=deep(make_plan, 320), micro_batch_size=1, budget={"max_hours": None})
    message = one_violation(plan).message
    assert "needs 47.7 GiB per rank for weights, gradients and Adam alone" in message
    assert "allows 22.3 GiB (23.5 GiB x 0.95)" in message
    assert "No micro-batch or precision helps, nor do more cards under DDP" in message
    assert one_violation(plan).fix.startswith("a card with at least")


def test_violations_leaves_unknown_memory_to_a_warning(make_plan):
    plan = on_card_with(make_plan(micro_batch_size=4096), None)
    assert violations(plan, simple_estimate(plan)) == ()
    assert [finding.check for finding in warnings(plan, simple_estimate(plan))] == ["budget.memory"]


def test_violations_of_hours_names_every_way_out_with_numbers_that_work(make_plan):
    # 36,000 steps x 4 s = 40 h of 24: 21,600 steps x 12,288 tokens fit
    plan = make_plan(n_steps=36_000, trainer={"micro_batch_size": 12})
    violation = one_violation(plan)
    assert violation.need == pytest.approx(40.0)
    assert violation.limit == 24.0
    assert violation.message == "gpt2_124m on 1x4090 takes 40 h (expected) of budget.max_hours=24."
    assert violation.fix == (
        f"budget.max_hours=40, trainer.total_tokens={21_600 * 12_288} or hw=2x4090 dry_run=true"
    )  # and no model of another kind


def test_violations_of_hours_speaks_of_steps_when_steps_were_given(make_plan):
    plan = make_plan(n_steps=36_000, provenance={"trainer.n_steps": "given"})
    assert "trainer.n_steps=21600" in one_violation(plan).fix
    assert "total_tokens" not in one_violation(plan).fix


def test_violations_of_hours_on_a_processor_offers_the_bill_of_rented_cards(make_plan):
    plan = make_plan(card="cpu", n_steps=36_000)
    assert one_violation(plan).fix.endswith("or hw=4x4090 dry_run=true")
    large = replace(plan, model=replace(plan.model, n_layer=700))  # 28 GB of states: no such card holds them
    hours = next(v for v in violations(large, simple_estimate(large)) if v.budget == "hours")
    assert hours.fix.endswith("or action=compare")


def test_violations_of_hours_offers_as_many_of_the_same_cards_as_are_enough(make_plan):
    plan = make_plan(micro_batch_size=16, n_steps=60_000)  # 67 h: 33 h on two, 17 h on four
    assert one_violation(plan).fix.endswith("or hw=4x4090 dry_run=true")
    on_a_whole_node = make_plan(n_gpus=8, micro_batch_size=16, n_steps=600_000)  # 83 h: 21 h on four nodes
    assert one_violation(on_a_whole_node).fix.endswith("or hw=4x8x4090 dry_run=true")
    endless = make_plan(micro_batch_size=16, n_steps=6_000_000)
    assert "hw=" not in one_violation(endless).fix


def test_violations_offers_no_tokens_when_not_even_one_step_fits(make_plan):
    plan = make_plan(n_steps=10, budget={"max_hours": 0.001})  # 3.6 s, a step takes 4 s
    assert "total_tokens" not in one_violation(plan).fix


def test_violations_judges_hours_on_the_high_edge_when_asked(make_plan):
    # 18,000 steps x 4 s = 20 h, 25 h at the high edge
    relaxed = make_plan(n_steps=18_000)
    strict = make_plan(n_steps=18_000, budget={"judge_on": JudgeOn.high})
    assert violations(relaxed, simple_estimate(relaxed)) == ()
    assert one_violation(strict).need == pytest.approx(25.0)
    assert "(at the high edge)" in one_violation(strict).message


def test_violations_of_money_and_energy_give_need_and_limit_in_their_units(make_plan):
    # 9,000 steps x 4 s = 10 h at $1.36 and 500 W
    plan = make_plan(n_steps=9_000, budget={"max_cost_usd": 6.8001, "max_energy_kwh": 4.0})
    money, energy = violations(plan, simple_estimate(plan))
    assert (money.budget, money.need, money.limit) == ("cost_usd", pytest.approx(13.6), 6.8001)
    assert (energy.budget, energy.need, energy.limit) == ("energy_kwh", pytest.approx(5.0), 4.0)
    # what is offered keeps every budget: half the tokens for the money, not four fifths for the energy
    assert f"trainer.total_tokens={4_500 * 12_288}" in energy.fix
    assert "budget.max_cost_usd=14" in money.fix


def test_violations_refuses_an_unknown_price_under_a_money_budget(make_plan):
    plan = make_plan(usd_per_hour=None, budget={"max_cost_usd": 100.0})
    violation = one_violation(plan)
    assert violation.need is None
    assert "cannot be kept: the cost of gpt2_124m on 1x4090 is unknown" in violation.message
    assert violation.fix.startswith("hw.price_usd_per_hour=")


def test_violations_ignores_an_unknown_price_without_a_money_budget(make_plan):
    plan = make_plan(usd_per_hour=None)
    assert violations(plan, simple_estimate(plan)) == ()


def test_warnings_say_that_unknown_hours_are_not_judged(make_plan):
    plan = make_plan()
    plan = replace(plan, hw=replace(plan.hw, card=replace(plan.hw.card, peak_flops_per_second={})))
    assert violations(plan, simple_estimate(plan)) == ()
    (warning,) = warnings(plan, simple_estimate(plan))
    assert (warning.check, warning.severity) == ("budget.hours", Severity.warning)
    assert "budget.max_hours=24 is not judged" in warning.message


def test_warnings_tell_a_budget_that_holds_on_the_middle_only(make_plan):
    plan = make_plan(n_steps=18_000)  # 20 h, 25 h at the high edge
    (warning,) = warnings(plan, simple_estimate(plan))
    assert warning.message == "budget.max_hours=24 holds for the 20 h expected, not for the high edge of 25 h"
    assert warning.fix == "budget.max_hours=25, or budget.judge_on=high to be strict"


def test_violations_hold_the_time_against_a_deadline_like_hours(make_plan):
    soon = {"deadline": "2026-11-30T13:00+00:00", "deadline_hours": 1.0, "max_hours": None}
    violation = one_violation(make_plan(n_steps=500_000, budget=soon))
    assert (violation.budget, violation.limit) == ("deadline", 1.0)
    assert "of budget.deadline=2026-11-30T13:00+00:00 (60 min from now)." in violation.message
    assert "budget.deadline=null or trainer.total_tokens=" in violation.fix
    small = make_plan(n_steps=10, budget=soon)
    assert violations(small, simple_estimate(small)) == ()
