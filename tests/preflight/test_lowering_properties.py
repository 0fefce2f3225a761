"""What must hold of every lowering, tried on random plans with the real sums."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from random_plans import PRECISIONS, SETTINGS, plan_of, questions, shaped

from conf.choices import PolicyChoice
from preflight.bill import make_bill
from preflight.estimate import estimate
from preflight.lowering.lower import lower
from preflight.plan import Precision
from preflight.verdict.judge import Decision, broken_budgets


def depth(asked, lowered):
    """How much was lowered, compared in the order model, precision, batch."""
    models = [asked.model, *asked.lowering.smaller_models]
    order = (*PRECISIONS, Precision.fp16)
    return (
        models.index(lowered.model),
        order.index(lowered.trainer.precision) - order.index(asked.trainer.precision),
        -lowered.trainer.micro_batch_size,
    )


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
def test_lower_changes_nothing_but_batch_precision_and_model(make_plan, question):
    plan = plan_of(make_plan, question)
    lowered = lower(plan)
    trainer = lowered.plan.trainer
    asked = replace(
        plan,
        model=lowered.plan.model,
        trainer=replace(
            plan.trainer,
            micro_batch_size=trainer.micro_batch_size,
            grad_accum_steps=trainer.grad_accum_steps,
            precision=trainer.precision,
        ),
    )
    assert lowered.plan == asked
    n_sequences = trainer.micro_batch_size * trainer.grad_accum_steps * plan.hw.world_size
    assert n_sequences * trainer.sequence_length == plan.trainer.tokens_per_step
    assert lowered.plan.model.vocab_size == plan.model.vocab_size
    assert {change.rung for change in lowered.changes}.isdisjoint(plan.lowering.keep)
    assert plan.lowering.allow_model or lowered.plan.model == plan.model


@given(question=questions())
@settings(SETTINGS, max_examples=40)
def test_lower_is_idempotent_and_leaves_a_fitting_plan_untouched(make_plan, question):
    lowered = lower(plan_of(make_plan, question))
    again = lower(lowered.plan)
    assert again.plan == lowered.plan
    assert again.changes == ()


@given(question=questions())
@settings(SETTINGS, max_examples=60)
def test_lower_never_lowers_more_with_more_of_everything(make_plan, question):
    question = question | {"policy": PolicyChoice.auto}
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
@settings(SETTINGS, max_examples=40)
def test_lower_takes_no_more_than_it_must(make_plan, question):
    """Undoing the gravest change alone, with the best batch for it, breaks a budget."""
    question = question | {"policy": PolicyChoice.auto, "keep": ()}
    plan = plan_of(make_plan, question)
    lowered = lower(plan)
    gravest = lowered.changes[0].rung if lowered.changes else "none"
    if gravest == "model":
        assert lower(replace(plan, lowering=replace(plan.lowering, allow_model=False))).violations
    elif gravest == "precision":
        assert lower(replace(plan, lowering=replace(plan.lowering, keep=("precision", "model")))).violations


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


def given_override(plan, override):
    path, value = override.split("=", 1)
    lowering, trainer = plan.lowering, plan.trainer
    if path == "trainer.micro_batch_size":
        n_passes = trainer.micro_batch_size * trainer.grad_accum_steps // int(value)
        return replace(plan, trainer=replace(trainer, micro_batch_size=int(value), grad_accum_steps=n_passes))
    if path == "trainer.precision":
        return replace(plan, trainer=replace(trainer, precision=Precision(value)))
    field = {
        "lowering.allow_model": {"allow_model": True},
        "lowering.policy": {"policy": PolicyChoice.auto},
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
