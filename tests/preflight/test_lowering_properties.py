"""What must hold of every lowering, tried on random plans with the real sums."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conf.schema import PolicyChoice
from preflight.bill import make_bill
from preflight.estimate import estimate
from preflight.lowering import lower
from preflight.plan import Precision
from preflight.verdict import Decision, broken_budgets

PRECISIONS = (Precision.fp32, Precision.tf32, Precision.bf16)
SHAPES = ((48, 25, 1600), (36, 20, 1280), (24, 16, 1024), (12, 12, 768), (6, 6, 384))  # GPT-2's sizes and a small one
SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])  # a builder, no state
RUNGS = ("batch", "precision", "model")


def shaped(model, n_layer, n_head, n_embd):
    return replace(
        model, name=f"gpt2_{n_layer}x{n_embd}", n_layer=n_layer, n_head=n_head, n_kv_head=n_head, n_embd=n_embd,
        d_ff=4 * n_embd,
    )  # fmt: skip


@st.composite
def questions(draw):
    """Keyword arguments of a plan, and how deep in the family it starts."""
    return {
        "shape": draw(st.integers(0, len(SHAPES) - 1)),
        "card": draw(st.sampled_from(["4090", "a100_80gb", "cpu"])),
        "n_gpus": draw(st.sampled_from([1, 2, 4])),
        "micro_batch_size": draw(st.sampled_from([1, 2, 3, 8, 12, 48, 64])),
        "grad_accum_steps": draw(st.sampled_from([1, 2, 5])),
        "n_steps": draw(st.sampled_from([1, 50, 20_000])),
        "precision": draw(st.sampled_from(PRECISIONS)),
        "max_hours": draw(st.sampled_from([None, 0.5, 24.0, 400.0])),
        "max_cost_usd": draw(st.sampled_from([None, 1.0, 300.0])),
        "memory_fraction": draw(st.sampled_from([0.3, 0.95])),
        "keep": tuple(draw(st.sets(st.sampled_from(RUNGS), max_size=1))),
        "allow_model": draw(st.booleans()),
        "policy": draw(st.sampled_from(list(PolicyChoice))),
    }


@pytest.fixture
def plan_of(make_plan):
    """A plan for drawn arguments."""

    def build(question, **changed):
        q = question | changed
        asked = make_plan().model
        family = [shaped(asked, *shape) for shape in SHAPES[q["shape"] :]]
        on_cpu = q["card"] == "cpu" and q["precision"] is Precision.tf32
        return make_plan(
            model=family[0], card=q["card"], n_gpus=q["n_gpus"], micro_batch_size=q["micro_batch_size"],
            grad_accum_steps=q["grad_accum_steps"], n_steps=q["n_steps"],
            precision=Precision.fp32 if on_cpu else q["precision"],
            budget={
                "max_hours": q["max_hours"], "max_cost_usd": q["max_cost_usd"],
                "max_memory_fraction": q["memory_fraction"],
            },
            lowering={
                "policy": q["policy"], "keep": q["keep"], "allow_model": q["allow_model"],
                "smaller_models": tuple(family[1:]),
            },
        )  # fmt: skip

    return build


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
def test_lower_satisfies_every_budget_or_refuses(plan_of, question):
    plan = plan_of(question)
    lowered = lower(plan)
    if lowered.violations:
        assert lowered.plan is plan
        assert {v.budget for v in lowered.violations} == set(broken_budgets(plan, estimate(plan)))
    else:
        assert broken_budgets(lowered.plan, estimate(lowered.plan)) == ()


@given(question=questions())
@settings(SETTINGS, max_examples=60)
def test_lower_changes_nothing_but_batch_precision_and_model(plan_of, question):
    plan = plan_of(question)
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
def test_lower_is_idempotent_and_leaves_a_fitting_plan_untouched(plan_of, question):
    lowered = lower(plan_of(question))
    again = lower(lowered.plan)
    assert again.plan == lowered.plan
    assert again.changes == ()


@given(question=questions())
@settings(SETTINGS, max_examples=60)
def test_lower_never_lowers_more_with_more_of_everything(plan_of, question):
    question = question | {"policy": PolicyChoice.auto}
    plan = plan_of(question)
    tight = lower(plan)
    if tight.violations:
        return
    for more in ({"memory_fraction": 1.0}, {"max_hours": None}, {"max_cost_usd": None}):
        richer = plan_of(question, **more)
        loose = lower(richer)
        assert loose.violations == ()
        assert depth(richer, loose.plan) <= depth(plan, tight.plan)


@given(question=questions())
@settings(SETTINGS, max_examples=40)
def test_lower_takes_no_more_than_it_must(plan_of, question):
    """Undoing the gravest change alone, with the best batch for it, breaks a budget."""
    question = question | {"policy": PolicyChoice.auto, "keep": ()}
    plan = plan_of(question)
    lowered = lower(plan)
    gravest = lowered.changes[0].rung if lowered.changes else "none"
    if gravest == "model":
        assert lower(replace(plan, lowering=replace(plan.lowering, allow_model=False))).violations
    elif gravest == "precision":
        assert lower(replace(plan, lowering=replace(plan.lowering, keep=("precision", "model")))).violations


@given(question=questions())
@settings(SETTINGS, max_examples=60)
def test_would_help_makes_a_yes_when_its_overrides_are_given(plan_of, question):
    plan = plan_of(question)
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
