"""What is lowered when memory has run out: each rung once, in the plan's order, nothing that is protected."""

from __future__ import annotations

from collections.abc import Callable

from preflight.lowering.after_oom import next_rung
from preflight.plan import Checkpointing, Precision, RunPlan

Plans = Callable[..., RunPlan]


def test_next_rung_halves_the_batch_first_and_keeps_the_global_one(make_plan: Plans):
    plan = make_plan(micro_batch_size=12, grad_accum_steps=5)  # 60 sequences: 1 2 3 4 5 6 10 12 ... divide them
    lower = next_rung(plan, frozenset())
    assert lower is not None
    assert (lower.rung, lower.plan.trainer.micro_batch_size, lower.plan.trainer.grad_accum_steps) == ("batch", 6, 10)
    assert lower.plan.trainer.tokens_per_step == plan.trainer.tokens_per_step
    assert [(change.field, change.old, change.new) for change in lower.changes] == [
        ("trainer.micro_batch_size", "12", "6")
    ]


def test_next_rung_goes_down_each_rung_once(make_plan: Plans):
    plan = make_plan(card="a100_80gb", micro_batch_size=12, precision=Precision.fp32)
    used: frozenset[str] = frozenset()
    order = []
    while (lower := next_rung(plan, used)) is not None:
        plan, used = lower.plan, used | {lower.rung}
        order.append(lower.rung)
    assert order == ["batch", "precision"]  # the model only with consent
    assert (plan.trainer.micro_batch_size, plan.trainer.precision) == (6, Precision.bf16)  # tf32 saves no memory


def test_next_rung_takes_the_plans_own_rungs_but_not_the_optimizer_whose_states_are_there(make_plan: Plans):
    rungs = ("optimizer", "checkpointing", "batch")
    plan = make_plan(micro_batch_size=1, lowering={"rungs": rungs, "keep": ("batch",)})
    lower = next_rung(plan, frozenset())
    assert lower is not None
    assert (lower.rung, lower.plan.trainer.activation_checkpointing) == ("checkpointing", Checkpointing.selective)
    assert next_rung(plan, frozenset({"checkpointing"})) is None
