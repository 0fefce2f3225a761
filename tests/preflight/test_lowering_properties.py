"""What must hold of every lowering, tried on random plans with the real sums."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from random_plans import SETTINGS, plan_of, questions, shaped

from conf.choices import PolicyChoice
from preflight.bill import make_bill
from preflight.estimate import estimate
from preflight.lowering.levels import BATCH, EVERY_RUNG, FIELDS, FIELDS_BEHIND, levels, order_of, value_of
from preflight.lowering.lower import allowed_rungs, lower
from preflight.plan import Precision, valid_micro_batch_sizes
from preflight.sharing import can_share
from preflight.verdict.fitting import at_micro_batch_size
from preflight.verdict.judge import Decision
from preflight.verdict.needs import broken_budgets


def depth(asked, lowered):
    """How much was lowered: a level for each rung, the gravest first; of the batch, what was given up."""
    found = []
    for rung in reversed(order_of(asked)):
        if rung == BATCH:
            found.append(-min(lowered.trainer.micro_batch_size, asked.trainer.micro_batch_size))
        else:
            found.append([value_of(one, rung) for one in levels(asked, rung)].index(value_of(lowered, rung)))
    return tuple(found)


@given(question=questions())
@settings(SETTINGS, max_examples=60)
def test_lower_satisfies_every_budget_or_refuses(make_plan, question):
    plan = plan_of(make_plan, question)
    lowered = lower(plan)
    if lowered.violations:
        assert lowered.plan is plan
        assert {v.budget for v in lowered.violations} == set(broken_budgets(plan, estimate(plan)))
    else:
        assert broken_budgets(lowered.plan, estimate(lowered.plan)) == ()


@given(question=questions())
@settings(SETTINGS, max_examples=60)
def test_lower_changes_nothing_but_the_rungs_that_may(make_plan, question):
    plan = plan_of(make_plan, question)
    lowered = lower(plan)
    trainer = lowered.plan.trainer
    moved = ("micro_batch_size", "grad_accum_steps", *(name for names in FIELDS_BEHIND.values() for name in names))
    fields = {name: getattr(trainer, name) for name in moved}
    assert lowered.plan == replace(plan, model=lowered.plan.model, trainer=replace(plan.trainer, **fields))
    n_sequences = trainer.micro_batch_size * trainer.grad_accum_steps * plan.hw.world_size
    assert n_sequences * trainer.sequence_length == plan.trainer.tokens_per_step
    model = lowered.plan.model
    assert model.vocab_size == plan.model.vocab_size
    assert model.n_embd % model.n_head == 0
    changed = {change.rung for change in lowered.changes}
    assert changed <= allowed_rungs(plan) | ({BATCH} if plan.lowering.raise_batch else set())
    assert changed.isdisjoint(plan.lowering.keep)
    assert plan.lowering.allow_model or model == plan.model


@given(question=questions())
@settings(SETTINGS, max_examples=40)
def test_lower_is_idempotent_and_leaves_a_fitting_plan_untouched(make_plan, question):
    plan = plan_of(make_plan, question)
    lowered = lower(plan)
    if not question["raise_batch"] and not broken_budgets(plan, estimate(plan)):
        assert lowered.plan is plan
    again = lower(lowered.plan)
    assert again.plan == lowered.plan
    assert again.changes == ()


@given(question=questions())
@settings(SETTINGS, max_examples=60)
def test_lower_never_lowers_more_with_more_of_everything(make_plan, question):
    question = question | {"policy": PolicyChoice.auto, "raise_batch": False}
    plan = plan_of(make_plan, question)
    tight = lower(plan)
    if tight.violations:
        return
    for more in ({"memory_fraction": 1.0}, {"max_hours": None}, {"max_cost_usd": None}):
        richer = plan_of(make_plan, question, **more)
        loose = lower(richer)
        assert loose.violations == ()
        assert depth(richer, loose.plan) <= depth(plan, tight.plan)


@given(question=questions())
@settings(SETTINGS, max_examples=25)
def test_lower_finds_the_least_of_all_lowerings(make_plan, question):
    """Against every combination of levels and every batch, tried one by one."""
    question = question | {"policy": PolicyChoice.auto, "raise_batch": False}
    plan = plan_of(make_plan, question)
    if not broken_budgets(plan, estimate(plan)):
        return
    sizes = [plan.trainer.micro_batch_size]
    if BATCH in allowed_rungs(plan):
        sizes += [s for s in valid_micro_batch_sizes(plan.trainer, plan.hw.world_size) if s < sizes[0]]
    ladder = [rung for rung in EVERY_RUNG if rung in allowed_rungs(plan) and rung != BATCH]
    every = [plan]
    for rung in ladder:
        every = [lower_still for one in every for lower_still in levels(one, rung)]
    every = [one for one in every if can_share(one.trainer)]
    yes = [
        depth(plan, one)
        for shaped_plan in every
        for size in sizes
        if not broken_budgets(one := at_micro_batch_size(shaped_plan, size), estimate(one))
    ]
    lowered = lower(plan)
    assert (not yes) == bool(lowered.violations)
    if yes:
        assert depth(plan, lowered.plan) == min(yes)


@given(question=questions())
@settings(SETTINGS, max_examples=60)
def test_would_help_makes_a_yes_when_its_overrides_are_given(make_plan, question):
    plan = plan_of(make_plan, question)
    helps = lower(plan).would_help
    if not helps:
        return
    for change in helps:
        for override in change.pin.split(" "):
            plan = given_override(plan, override)
    assert make_bill(plan, ()).verdict.decision in (Decision.go, Decision.go_lowered)


def ladder_of(plan):
    return [rung for rung in order_of(plan) if rung not in (BATCH, "model")]


def given_override(plan, override):
    path, value = override.split("=", 1)
    lowering, trainer = plan.lowering, plan.trainer
    if path == "trainer.micro_batch_size":
        n_passes = trainer.micro_batch_size * trainer.grad_accum_steps // int(value)
        return replace(plan, trainer=replace(trainer, micro_batch_size=int(value), grad_accum_steps=n_passes))
    for rung in ladder_of(plan):
        if path == FIELDS[rung]:
            return next(one for one in levels(plan, rung) if value_of(one, rung) == value)
    field = {
        "lowering.allow_model": {"allow_model": True},
        "lowering.policy": {"policy": PolicyChoice.auto},
        "lowering.rungs": {"rungs": tuple(value.strip("[]").split(","))},
        "lowering.keep": {"keep": tuple(rung for rung in value.strip("[]").split(",") if rung)},
    }[path]
    return replace(plan, lowering=replace(lowering, **field))


def test_lower_says_that_precision_cannot_save_gpt2_xl_on_11_gb(make_plan):
    # 1,557,611,200 parameters x 16 bytes = 23.2 GiB of fp32 states, whatever the precision (transformers#1750)
    plan = make_plan(model=shaped(make_plan().model, 48, 25, 1600), micro_batch_size=1, precision=Precision.fp32)
    card = replace(plan.hw.card, memory_bytes=11 * 2**30)
    lowered = lower(replace(plan, hw=replace(plan.hw, card=card)))
    assert lowered.plan.trainer.precision is Precision.fp32
    memory = next(violation for violation in lowered.violations if violation.budget == "memory")
    assert "needs 23.2 GiB per rank for weights, gradients and Adam alone" in memory.message
    assert "fp32 in every precision" in memory.message
