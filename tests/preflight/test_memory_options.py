"""What each option of the trainer does to the bytes of one rank, worked by hand."""

from dataclasses import replace

import pytest

from conf.choices import (
    Activation,
    Adapter,
    AdapterTargets,
    Attention,
    Float32Matmul,
    Optimizer,
    OptimizerKernel,
    Parallel,
)
from preflight.attention_blocks import n_scores
from preflight.memory.activations import activations_of
from preflight.memory.peak import estimate_memory
from preflight.memory.workload import workload_of
from preflight.params import count_params
from preflight.plan import Checkpointing, Precision
from tests.conftest import GPT2_124M, LLAMA_7B, build_plan

P, D, L, H, V = 124_373_760, 768, 12, 12, 50304
N = 12 * 1024
MATRICES = 12 * 12 * D * D
TABLES = (V + 1024) * D
VECTORS = P - MATRICES - TABLES


def of(**trainer):
    plan_fields = {name: trainer.pop(name) for name in ("n_gpus", "precision", "card", "model") if name in trainer}
    return estimate_memory(build_plan(trainer=trainer, **plan_fields))


@pytest.mark.parametrize(
    ("optimizer", "n_bytes"),
    [
        (Optimizer.adamw, 8 * P),
        (Optimizer.sgd, 4 * P),
        (Optimizer.adamw_8bit, 2 * (P - VECTORS) * (1 + 4 / 256) + 8 * VECTORS),
        (Optimizer.muon, 8 * P - 4 * MATRICES),
    ],
)
def test_optimizer_states_are_what_each_rule_keeps(optimizer, n_bytes):
    assert of(optimizer=optimizer).terms_bytes["optimizer_states"] == pytest.approx(n_bytes, rel=1e-6)


def test_adafactor_keeps_rows_and_columns():
    assert of(optimizer=Optimizer.adafactor).terms_bytes["optimizer_states"] < 0.01 * 4 * P


def test_foreach_makes_a_list_of_temporaries_and_fused_none():
    fused, foreach = of(), of(optimizer_kernel=OptimizerKernel.foreach)
    step = "optimizer_step"
    assert foreach.phases_bytes[step] - fused.phases_bytes[step] == 4 * (MATRICES + TABLES)


def test_pure_bf16_halves_weights_gradients_and_moments():
    pure = of(precision=Precision.bf16_pure)
    assert pure.terms_bytes["weights"] == 2 * P
    assert pure.terms_bytes["optimizer_states"] == 4 * P
    assert "weight_casts" not in pure.terms_bytes
    assert pure.terms_bytes["logits_and_loss"] == 6 * N * V


def test_zero1_shares_moments_zero2_gradients_zero3_weights():
    ddp, one, two, three = (of(n_gpus=4, parallel=parallel).terms_bytes for parallel in Parallel)
    assert ddp["optimizer_states"] == 8 * P
    assert two["optimizer_states"] == 2 * P
    assert one["optimizer_states"] == pytest.approx(8 * V * D, rel=0.001)  # the embedding's stand on one rank
    assert one["weights"] == 4 * P
    assert two["weights"] == three["weights"] == P
    assert two["gathered_weights"] > 2 * MATRICES > three["gathered_weights"]


def test_buckets_that_are_no_views_are_a_second_copy_of_the_gradients():
    views, copies = of(n_gpus=2), of(n_gpus=2, bucket_views=False)
    assert copies.terms_bytes["gradient_buckets"] == 4 * P
    assert copies.phases_bytes["optimizer_step"] - views.phases_bytes["optimizer_step"] == 4 * P


def test_chunked_loss_holds_a_chunk_of_logits():
    whole, chunked = of(), of(loss_chunk_tokens=1024)
    assert whole.terms_bytes["logits_and_loss"] == 10 * N * V
    assert chunked.allocated.mid < 0.6 * whole.allocated.mid
    assert chunked.terms_bytes.get("logits_and_loss", 0) <= 8 * 1024 * V


def test_written_out_attention_keeps_what_the_mask_leaves():
    fused, written = of(), of(attention=Attention.eager)
    scores = 12 * L * H * n_scores(1024) * 2
    difference = written.terms_bytes["activations_attention"] - fused.terms_bytes["activations_attention"]
    assert difference == pytest.approx(scores - 12 * 1024 * L * H * 4, rel=1e-3)


def test_products_that_are_rounded_halve_what_attention_in_blocks_keeps():
    """Queries, keys, values and half of the scores in 2 bytes; the norm's output and the values' sum in 4."""
    cpu = {"card": "cpu", "precision": Precision.fp32, "attention": Attention.eager}
    medium = of(float32_matmul_precision=Float32Matmul.medium, **cpu).terms_bytes["activations_attention"]
    exact = of(**cpu).terms_bytes["activations_attention"]
    length = 1024
    assert medium == N * L * (4 * 2 * D + 2 * 3 * D + 2 * H * n_scores(length) // length)
    assert exact - medium == N * L * 2 * (3 * D + H * n_scores(length) // length)


def test_query_key_norms_in_fp32_keep_what_the_matmul_gave_beside_attentions_copies():
    """Queries and keys normalised and their fp32 values, q, k and v as they came, the values copied: 4 bytes each."""
    plain = {"card": "cpu", "precision": Precision.fp32, "attention": Attention.eager}
    normed = of(model=replace(GPT2_124M, qk_norm=True), **plain).terms_bytes["activations_attention"]
    assert normed - of(**plain).terms_bytes["activations_attention"] == N * L * (4 * (3 * D + 2 * D) + 4 * 2 * H)


def test_selective_recomputation_is_between_none_and_full():
    none, selective, full = (of(activation_checkpointing=kind).allocated.mid for kind in Checkpointing)
    assert full < selective < none


def test_evaluation_has_a_batch_of_its_own():
    small, large = of(), of(eval_micro_batch_size=48)
    assert large.phase == "evaluation"
    assert large.phases_bytes["evaluation"] > 3 * small.phases_bytes["evaluation"]


def test_adapters_of_a_7b_model_need_18_gb_and_quantised_ones_a_third_of_the_weights():
    n_params = count_params(LLAMA_7B, 1024).total
    plan = build_plan(
        model="llama_7b", card="a100_80gb", micro_batch_size=1,
        checkpointing=Checkpointing.full, trainer={"adapter": Adapter.lora, "lora_targets": AdapterTargets.query_value},
    )  # fmt: skip
    lora = estimate_memory(plan)
    quantised = estimate_memory(replace(plan, trainer=replace(plan.trainer, adapter=Adapter.qlora)))
    assert lora.terms_bytes["frozen_weights"] == pytest.approx(2 * n_params, rel=0.001)
    assert lora.terms_bytes["weights"] == 4 * 32 * 8 * (2 * 4096 + 2 * 4096)
    assert 14e9 < lora.device.mid < 18e9
    assert quantised.terms_bytes["frozen_weights"] < 0.3 * lora.terms_bytes["frozen_weights"]


def test_checkpoints_of_a_processor_are_copied_and_read_in_its_own_memory():
    beside, waiting = of(card="cpu", save_beside=True), of(card="cpu", save_beside=False)
    assert beside.terms_bytes["checkpoint_copy"] == 12 * P
    assert waiting.phases_bytes["resume"] - waiting.phases_bytes["checkpoint"] == 4 * P


def test_head_wider_than_the_stream_is_paid_for():
    wide = replace(GPT2_124M, head_dim=128)
    assert of(model=wide).terms_bytes["activations_attention"] > 1.5 * of().terms_bytes["activations_attention"]


@pytest.mark.parametrize(
    ("activation", "targets", "n_wide"),
    [
        (Activation.gelu, None, 1),
        (Activation.gelu, AdapterTargets.linear, 2),
        (Activation.gelu, AdapterTargets.attention, 2),
        (Activation.relu2, None, 3),
        (Activation.relu2, AdapterTargets.linear, 3),
        (Activation.relu2, AdapterTargets.attention, 4),
    ],
)
def test_backward_pass_of_the_mlp_holds_as_many_wide_tensors_as_its_parts_give(activation, targets, n_wide):
    adapter = {} if targets is None else {"adapter": Adapter.lora, "lora_targets": targets}
    model = replace(GPT2_124M, activation=activation)
    plan = build_plan(precision=Precision.fp32, model=model, trainer=adapter)
    assert activations_of(workload_of(plan)).backward_working == N * 4 * (D + n_wide * 4 * D)


@pytest.mark.parametrize(
    ("targets", "n_channels"),
    [
        (AdapterTargets.query_value, 2 * 8 + 3 * D),
        (AdapterTargets.attention, 4 * 8 + 3 * D + D),
        (AdapterTargets.linear, 6 * 8 + 3 * D + D + 4 * D + D),
    ],
)
def test_selective_recomputation_keeps_what_the_matmuls_of_adapters_give(targets, n_channels):
    """Per token in 16 bits, beside the frozen matmuls' 9 D, fused attention's D and a log-sum-exp a head."""
    adapter = {"adapter": Adapter.lora, "lora_targets": targets, "lora_rank": 8}
    plan = build_plan(trainer={"activation_checkpointing": Checkpointing.selective, **adapter})
    kept = activations_of(workload_of(plan)).kept
    assert kept.attention + kept.mlp == N * (2 * (9 * D + D + n_channels) + 4 * H)
