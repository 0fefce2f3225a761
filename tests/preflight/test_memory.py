"""Hand-worked peaks, and what must hold for every plan."""

from dataclasses import replace

import pytest

from conf.choices import TrackingBackend
from preflight.memory.peak import BASE_TERMS, SCALING_TERMS, estimate_memory
from preflight.params import count_params
from preflight.plan import Calibration, Checkpointing, Factor, Precision
from preflight.units import GIB
from tests.conftest import A100_80GB, GPT2_124M, LLAMA_7B, RTX_4090, build_plan

P_124M = 124_373_760
N = 12 * 1024  # tokens
D, L, H, V = 768, 12, 12, 50304


def shape(**changes):
    return replace(GPT2_124M, **changes)


# ---- worked by hand


def test_gpt2_124m_autocast_peak_is_the_loss_gradient_worked_by_hand():
    estimate = estimate_memory(build_plan(micro_batch_size=12))
    saved = N * (L * (36 * D + 16 + 4 * H) + 6 * D + 8)  # 36 d, LayerNorm statistics, log-sum-exp; final norm 6 d
    casts = 2 * (L * 12 * D * D + V * D)  # 16-bit copies of every matrix, the head included
    logits = 10 * V * N  # log-probabilities 2, fp32 copy 4, its gradient 4
    states = 12 * P_124M  # weights and two moments; no gradients yet
    cublas, inputs = 2 * 8_519_680, 32 * N
    assert estimate.phase == "loss_backward"
    assert estimate.allocated.mid == states + saved + casts + logits + cublas + inputs
    assert estimate.allocated.mid / GIB == pytest.approx(11.252, abs=0.001)


def test_gpt2_124m_fp32_keeps_64_bytes_a_channel_and_12_a_logit():
    terms = estimate_memory(build_plan(precision=Precision.fp32)).terms_bytes
    activations = sum(n_bytes for name, n_bytes in terms.items() if name.startswith("activations"))
    assert activations == N * (L * (64 * D + 16 + 4 * H) + 8 * D + 8)
    assert terms["logits_and_loss"] == 12 * V * N
    assert "weight_casts" not in terms


def test_cpu_autocast_runs_the_loss_in_fp32():
    on_cpu = estimate_memory(build_plan(card="cpu")).terms_bytes["logits_and_loss"]
    assert on_cpu == 12 * V * N


def test_compiled_loss_keeps_the_logits_alone():
    assert estimate_memory(build_plan(compile=True)).terms_bytes["logits_and_loss"] == 2 * V * N


def test_accumulation_keeps_gradients_through_the_next_pass():
    one, many = estimate_memory(build_plan()), estimate_memory(build_plan(grad_accum_steps=5))
    assert many.allocated.mid - one.allocated.mid == 4 * P_124M
    assert many == replace(estimate_memory(build_plan(grad_accum_steps=80)))


def test_ddp_buckets_are_the_gradients_and_always_there():
    alone, four = estimate_memory(build_plan()), estimate_memory(build_plan(n_gpus=4))
    assert four.terms_bytes["gradients"] == 4 * P_124M
    assert "gradients" not in alone.terms_bytes
    assert four.phases_bytes["checkpoint"] - alone.phases_bytes["checkpoint"] == 4 * P_124M
    assert "nccl" in four.terms_bytes
    assert "nccl" not in alone.terms_bytes


def test_recomputation_keeps_one_stream_a_block_and_the_logits():
    estimate = estimate_memory(build_plan(checkpointing=Checkpointing.full))
    assert estimate.terms_bytes["activations_residual"] == N * (L * 4 * D + 6 * D + 8)
    assert estimate.terms_bytes["logits_and_loss"] == 10 * V * N
    assert "activations_mlp" not in estimate.terms_bytes


def test_large_model_with_few_tokens_peaks_when_all_gradients_are_there():
    xl = shape(n_layer=48, n_embd=1600, n_head=25, n_kv_head=25, d_ff=6400)
    estimate = estimate_memory(build_plan(model=xl, card="a100_80gb", micro_batch_size=1, sequence_length=128))
    n_params = count_params(xl, 128).total
    assert estimate.phase == "backward_end"
    assert estimate.terms_bytes["gradients"] == 4 * n_params
    assert estimate.terms_bytes["optimizer_states"] == 8 * n_params


def test_llama_7b_keeps_what_swiglu_and_grouped_heads_need():
    terms = estimate_memory(build_plan(model="llama_7b", card="a100_80gb", micro_batch_size=8)).terms_bytes
    n_tokens, d, f = 8192, 4096, 11008
    angles = 1024 * 128 * 2 * 2 * 2  # cosines and sines in 16 bit, a copy for queries and one for keys
    # norm output, q, k, v, rotated q and k, output
    assert terms["activations_attention"] == 32 * (n_tokens * (2 * 7 * d + 4 * 32) + angles)
    # norm output, cast twice; gate, up, silu, product
    assert terms["activations_mlp"] == 32 * n_tokens * 2 * (2 * d + 4 * f)
    assert terms["activations_norms"] == 32 * n_tokens * 2 * 4
    grouped = replace(LLAMA_7B, n_kv_head=8)
    fewer = estimate_memory(build_plan(model=grouped, card="a100_80gb", micro_batch_size=8)).terms_bytes
    assert terms["activations_attention"] - fewer["activations_attention"] == 32 * n_tokens * 2 * 3 * (d - d // 4)


def test_dropout_adds_two_masks_a_layer_and_one_for_the_embedding():
    without = estimate_memory(build_plan())
    dropped = estimate_memory(build_plan(model=shape(dropout=0.1)))
    assert dropped.allocated.mid - without.allocated.mid == N * D * (2 * L + 1)


def test_checkpoint_on_disk_is_weights_and_two_moments():
    assert estimate_memory(build_plan()).checkpoint_bytes == 12 * P_124M


def test_hopper_has_a_larger_cublas_workspace():
    h100 = replace(A100_80GB, name="h100", compute_capability=9.0)
    assert estimate_memory(build_plan(card=h100)).terms_bytes["cublas_workspace"] == 2 * 32 * 2**20
    assert estimate_memory(build_plan()).terms_bytes["cublas_workspace"] == 2 * 8_519_680


# ---- what may be used


def test_usable_bytes_is_the_cards_memory_times_the_fraction():
    plan = build_plan(budget={"max_memory_fraction": 0.9})
    estimate = estimate_memory(plan)
    assert estimate.card_bytes == RTX_4090.memory_bytes
    assert estimate.usable_bytes == int(RTX_4090.memory_bytes * 0.9)


def test_usable_bytes_is_unknown_when_the_cards_memory_is():
    estimate = estimate_memory(build_plan(card=replace(RTX_4090, memory_bytes=None)))
    assert estimate.card_bytes is None
    assert estimate.usable_bytes is None


def test_ranks_on_one_cpu_share_its_memory():
    alone = estimate_memory(build_plan(model="tiny", card="cpu"))
    pair = estimate_memory(build_plan(model="tiny", card="cpu", n_gpus=2))
    assert pair.usable_bytes == alone.usable_bytes // 2
    assert pair.host_memory_bytes == 2 * int(pair.device.mid)


def test_cpu_resident_set_holds_the_process_and_no_context():
    estimate = estimate_memory(build_plan(model="tiny", card="cpu"))
    assert estimate.reserved == estimate.allocated
    assert estimate.terms_bytes["process"] > 200 * 2**20
    assert not {"context", "nccl", "cublas_workspace"} & set(estimate.terms_bytes)


# Measured 2026-11-30 with `python launch.py model=... tracking=none`: torch 2.13, glibc 2.36, 2 cores, three steps and
# an evaluation; peak resident set of the worker in MB.
MEASURED_MB = [
    ("tiny", 4, 256, "fp32", "none", 1, 398), ("tiny", 32, 128, "fp32", "none", 1, 563),
    ("tiny", 32, 128, "bf16", "full", 1, 430), ("tiny", 16, 1024, "bf16", "none", 1, 892),
    ("gpt2_10m", 4, 256, "fp32", "none", 1, 708), ("gpt2_10m", 16, 512, "fp32", "none", 1, 2216),
    ("gpt2_10m", 16, 512, "fp32", "full", 1, 1209), ("gpt2_10m", 16, 256, "bf16", "none", 2, 1097),
    ("gpt2_10m", 64, 256, "bf16", "none", 1, 2485), ("gpt2_10m", 64, 256, "fp32", "none", 1, 3883),
    ("gpt2_10m", 16, 256, "bf16", "full", 2, 810), ("gpt2_10m", 16, 512, "bf16", "none", 1, 1530),
    ("gpt2_124m", 1, 256, "bf16", "full", 1, 2631), ("gpt2_124m", 1, 1024, "fp32", "none", 1, 3384),
    ("gpt2_124m", 4, 512, "fp32", "none", 2, 5373), ("gpt2_124m", 4, 512, "fp32", "full", 2, 4140),
]  # fmt: skip
MEASURED_SHAPES = {
    "tiny": shape(n_layer=4, n_head=4, n_kv_head=4, n_embd=128, d_ff=512, vocab_size=256),
    "gpt2_10m": shape(n_layer=6, n_head=6, n_kv_head=6, n_embd=384, d_ff=1536, vocab_size=256),
    "gpt2_124m": GPT2_124M,
}


@pytest.mark.parametrize(("model", "size", "length", "precision", "recompute", "n_passes", "measured_mb"), MEASURED_MB)
def test_cpu_resident_set_agrees_with_measured_runs(model, size, length, precision, recompute, n_passes, measured_mb):
    device = estimate_memory(
        build_plan(
            model=MEASURED_SHAPES[model], card="cpu", micro_batch_size=size, sequence_length=length,
            precision=Precision(precision), checkpointing=Checkpointing(recompute), grad_accum_steps=n_passes,
        )
    ).device  # fmt: skip
    assert device.mid == pytest.approx(measured_mb * 1e6, rel=0.06)
    assert device.low <= measured_mb * 1e6 <= device.high


def test_tracking_with_wandb_adds_its_library_to_the_process():
    plan = build_plan(model="tiny", card="cpu")
    tracked = replace(plan, tracking=replace(plan.tracking, backend=TrackingBackend.wandb))
    assert estimate_memory(tracked).device.mid - estimate_memory(plan).device.mid == 30 * 2**20


def test_reserved_memory_has_the_hole_that_dead_logits_leave_under_autocast():
    half, full = estimate_memory(build_plan()), estimate_memory(build_plan(precision=Precision.fp32))
    hole = 2 * V * N
    assert hole < half.terms_bytes["allocator_slack"] < 1.2 * hole
    assert full.terms_bytes["allocator_slack"] < 0.3 * hole


# ---- calibration


def calibration(**factors):
    made = {
        name: Factor(value=v, low=low, high=high, n_runs=7, scope="same machine")
        for name, (v, low, high) in factors.items()
    }
    return Calibration(n_runs=7, factors=made, ledger_sha256=None)


def test_calibrated_factor_scales_what_grows_with_tokens_and_narrows_the_band():
    raw = estimate_memory(build_plan())
    plan = build_plan(calibration=calibration(activation_bytes=(1.1, 1.08, 1.12)))
    estimate = estimate_memory(plan)
    scaling = [name for name in SCALING_TERMS if name != "allocator_slack"]
    for name in scaling:
        assert estimate.terms_bytes.get(name, 0) == pytest.approx(1.1 * raw.terms_bytes.get(name, 0), abs=1)
    assert estimate.terms_bytes["weights"] == raw.terms_bytes["weights"]
    assert estimate.device.source == "calibrated (7 runs)"
    assert estimate.device.high / estimate.device.mid < raw.device.high / raw.device.mid
    assert sum(estimate.terms_bytes.values()) == estimate.device.mid


def test_calibrated_base_replaces_the_process_of_a_cpu_and_the_context_of_a_card():
    for name, n_bytes in (("cpu", 300e6), ("4090", 700e6)):
        raw = estimate_memory(build_plan(model="tiny", card=name))
        plan = build_plan(
            model="tiny", card=name, calibration=calibration(base_memory_bytes=(n_bytes, n_bytes, n_bytes))
        )
        estimate = estimate_memory(plan)
        term = next(term for term in BASE_TERMS if term in estimate.terms_bytes)
        assert estimate.terms_bytes[term] == n_bytes
        assert estimate.device.mid - raw.device.mid == n_bytes - raw.terms_bytes[term]
