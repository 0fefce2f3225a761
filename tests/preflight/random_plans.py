"""Random questions for the launcher, and the plans they come to."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from conf.choices import PolicyChoice
from preflight.plan import Precision

PRECISIONS = (Precision.fp32, Precision.tf32, Precision.bf16)
SHAPES = ((48, 25, 1600), (36, 20, 1280), (24, 16, 1024), (12, 12, 768), (6, 6, 384))  # GPT-2's sizes and a small one
SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])  # a builder, no state
RUNGS = ("batch", "loss_chunk", "checkpointing", "sharding", "optimizer", "precision", "model")
ORDERS = (
    ("batch", "precision", "model"), RUNGS, ("precision", "batch", "model"), ("batch", "checkpointing", "precision"),
    ("optimizer", "batch", "sharding", "model", "checkpointing"), ("model",), (),
)  # fmt: skip


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
        "rungs": draw(st.sampled_from(ORDERS)),
        "raise_batch": draw(st.booleans()),
        "allow_model": draw(st.booleans()),
        "policy": draw(st.sampled_from(list(PolicyChoice))),
    }


def plan_of(make_plan, question, **changed):
    """The plan that a question asks for."""
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
            "policy": q["policy"], "keep": q["keep"], "allow_model": q["allow_model"], "rungs": q["rungs"],
            "raise_batch": q["raise_batch"],
            "smaller_models": tuple(family[1:]),
        },
    )  # fmt: skip
