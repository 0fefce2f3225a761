"""The formula against the trainer's own model: fake tensors counted as they come and go."""

from dataclasses import replace

import pytest

from preflight.memory.peak import estimate_memory
from preflight.plan import Checkpointing, Precision
from scripts.trace_memory import main, measure_bytes, tensors_bytes, trace_phases
from tests.conftest import GPT2_124M, TINY, build_plan

SMALL = replace(TINY, n_layer=4, n_head=4, n_kv_head=4, n_embd=128, d_ff=512)
WIDE_VOCABULARY = replace(SMALL, n_layer=2, vocab_size=8192)


def plan_of(model, card, precision, recompute, n_passes, size=4):
    return build_plan(
        model=model, card=card, micro_batch_size=size, sequence_length=256, precision=precision,
        checkpointing=recompute, grad_accum_steps=n_passes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "card", "precision", "recompute", "n_passes"),
    [
        (SMALL, "cpu", Precision.fp32, Checkpointing.none, 1),
        (SMALL, "cpu", Precision.fp32, Checkpointing.full, 2),
        (SMALL, "cpu", Precision.bf16, Checkpointing.none, 2),
        (SMALL, "4090", Precision.fp16, Checkpointing.full, 1),
        (WIDE_VOCABULARY, "cpu", Precision.bf16, Checkpointing.full, 1),
        (WIDE_VOCABULARY, "4090", Precision.bf16, Checkpointing.none, 2),
    ],
)
def test_memory_formula_equals_the_trace_of_the_trainers_model(model, card, precision, recompute, n_passes):
    plan = plan_of(model, card, precision, recompute, n_passes)
    traced = max(trace_phases(plan).values())
    assert tensors_bytes(estimate_memory(plan)) == pytest.approx(traced, rel=0.01)


def test_memory_formula_follows_every_phase_of_gpt2_124m():
    plan = plan_of(GPT2_124M, "4090", Precision.bf16, Checkpointing.none, 2)
    formula = estimate_memory(plan).phases_bytes
    workspace = 2 * 8_519_680
    for phase, traced in trace_phases(plan).items():
        assert formula[phase] - workspace == pytest.approx(traced, rel=0.01)


BIASED = replace(SMALL, bias=True, qkv_bias=True)


@pytest.mark.parametrize("model", [BIASED, replace(SMALL, n_kv_head=2), replace(SMALL, dropout=0.1)])
def test_memory_formula_knows_bias_grouped_heads_and_dropout(model):
    plan = plan_of(model, "cpu", Precision.fp32, Checkpointing.none, 1)
    assert tensors_bytes(estimate_memory(plan)) == pytest.approx(max(trace_phases(plan).values()), rel=0.03)


def test_memory_formula_equals_real_tensors_under_the_profiler():
    plan = plan_of(WIDE_VOCABULARY, "cpu", Precision.bf16, Checkpointing.none, 2, size=1)
    assert tensors_bytes(estimate_memory(plan)) == pytest.approx(measure_bytes(plan), rel=0.02)


def test_trace_memory_prints_both_side_by_side(capsys):
    code = main(["model=tiny", "hw=1x4090", "trainer.precision=bf16", "trainer.micro_batch_size=4"])
    printed = capsys.readouterr().out
    assert code == 0
    assert "traced" in printed
    assert "formula" in printed
    assert "1 plans, worst 0." in printed
