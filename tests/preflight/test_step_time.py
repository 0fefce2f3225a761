"""Step time: properties, hand-worked parts, and public runs whose settings are known."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.choices import Attention, Float32Matmul
from preflight.hw_plan import CardKind
from preflight.plan import Calibration, Checkpointing, Factor, ModelPlan, Precision, RunPlan
from preflight.step_time.constants import CUDA
from preflight.step_time.step import estimate_step_time
from tests.conftest import A100_80GB, CPU, GPT2_124M, RTX_4090, build_plan

H100 = replace(
    A100_80GB, name="h100", label="H100 SXM5", compute_capability=9.0, watts=700.0, bandwidth_bytes_per_second=3350e9,
    peak_flops_per_second={"fp32": 67e12, "tf32": 494.5e12, "bf16": 989e12, "fp16": 989e12},
    nvlink_bytes_per_second=900e9, pcie_generation=5,
)  # fmt: skip
V100 = replace(
    A100_80GB, name="v100_32gb", compute_capability=7.0, has_bf16=False, watts=300.0, bandwidth_bytes_per_second=900e9,
    peak_flops_per_second={"fp32": 15.7e12, "fp16": 125e12}, nvlink_bytes_per_second=300e9, pcie_generation=3,
)  # fmt: skip
TITAN_RTX = replace(
    RTX_4090, name="titan_rtx", compute_capability=7.5, has_bf16=False, watts=280.0, bandwidth_bytes_per_second=672e9,
    peak_flops_per_second={"fp32": 16.3e12, "fp16": 130e12}, pcie_generation=3,
)  # fmt: skip
CHARACTERS = ModelPlan(
    name="shakespeare_char", family=GPT2_124M.family, n_layer=6, n_head=6, n_kv_head=6, n_embd=384, d_ff=1536,
    vocab_size=65, tokenizer=GPT2_124M.tokenizer, tied_head=True, bias=False, dropout=0.2,
)  # fmt: skip


def mid_seconds(plan: RunPlan) -> float:
    seconds = estimate_step_time(plan).seconds
    assert seconds is not None
    return seconds.mid


def calibrated(plan: RunPlan, factor: Factor) -> RunPlan:
    return replace(
        plan, calibration=Calibration(n_runs=factor.n_runs, factors={"step_seconds": factor}, ledger_sha256="")
    )


plans = st.builds(
    build_plan,
    card=st.sampled_from([RTX_4090, A100_80GB, H100, V100, CPU]),
    n_gpus=st.sampled_from([1, 2, 4, 8]),
    micro_batch_size=st.sampled_from([1, 4, 12, 64]),
    grad_accum_steps=st.sampled_from([1, 5, 40]),
    sequence_length=st.sampled_from([128, 1024, 8192]),
    precision=st.sampled_from([Precision.fp32, Precision.fp16, Precision.bf16]),
    compile=st.booleans(),
    checkpointing=st.sampled_from(list(Checkpointing)),
)


@given(plan=plans)
@settings(max_examples=60, deadline=None)
def test_terms_are_never_negative_and_sum_to_mid(plan: RunPlan) -> None:
    estimate = estimate_step_time(plan)
    if estimate.seconds is None:
        assert plan.hw.card.kind is CardKind.cpu  # fp16
        return
    assert min(estimate.terms_seconds.values()) >= 0.0
    assert sum(estimate.terms_seconds.values()) == pytest.approx(estimate.seconds.mid)
    assert estimate.mfu is not None
    assert 0.0 < estimate.mfu < 1.0
    assert estimate.tokens_per_second is not None
    assert estimate.tokens_per_second.mid == pytest.approx(plan.trainer.tokens_per_step / estimate.seconds.mid)


@given(plan=plans)
@settings(max_examples=40, deadline=None)
def test_recomputing_takes_longer_but_not_by_half(plan: RunPlan) -> None:
    kept, recomputed = (
        estimate_step_time(replace(plan, trainer=replace(plan.trainer, activation_checkpointing=choice))).seconds
        for choice in (Checkpointing.none, Checkpointing.full)
    )
    if kept is not None and recomputed is not None:
        assert kept.mid < recomputed.mid < 1.5 * kept.mid


def test_selective_recomputation_computes_attention_written_out_again() -> None:
    plan = build_plan(checkpointing=Checkpointing.selective)
    fused, written_out = (
        estimate_step_time(replace(plan, trainer=replace(plan.trainer, attention=kind))).terms_seconds
        for kind in (Attention.sdpa, Attention.eager)
    )
    again = written_out["attention"] / 3
    assert written_out["recompute"] - fused["recompute"] == pytest.approx(again)


@given(
    card=st.sampled_from([RTX_4090, A100_80GB, H100]), micro_batch_size=st.sampled_from([4, 12]), compile=st.booleans()
)
@settings(max_examples=20, deadline=None)
def test_more_cards_of_a_node_are_never_slower_at_the_same_global_batch(
    card: object, micro_batch_size: int, compile: bool
) -> None:
    seconds = [
        mid_seconds(
            build_plan(
                card=card, n_gpus=n, micro_batch_size=micro_batch_size, grad_accum_steps=40 // n, compile=compile
            )
        )
        for n in (1, 2, 4, 8)
    ]
    assert seconds == sorted(seconds, reverse=True)


@given(small=st.integers(1, 64), more=st.integers(1, 64))
@settings(max_examples=30, deadline=None)
def test_more_sequences_take_longer(small: int, more: int) -> None:
    assert mid_seconds(build_plan(micro_batch_size=small)) < mid_seconds(build_plan(micro_batch_size=small + more))


def test_matmul_term_is_flops_over_the_rate_at_the_width() -> None:
    """124M, 12 x 1024 tokens, A100: 3 x 2 x 12 x 12 x 768^2 FLOPs a token at 312 x 0.87 x sustained, knee 150 x R."""
    term = estimate_step_time(build_plan(card=A100_80GB)).terms_seconds["matmul"]
    rate = 312e12 * 0.87 * CUDA.sustained_fraction
    knee = CUDA.knee_width * (312e12 * 0.87 / 2039e9) / 135
    assert term == pytest.approx(12 * 1024 * 6 * 12 * 12 * 768**2 / (rate * 768 / (768 + knee)))


def test_rounding_products_on_a_processor_leaves_fused_attention_exact() -> None:
    """The knee moves with the ridge: at twice the rate a width of 768 reaches 768 / (768 + 2 x knee) of it."""
    terms = {}
    for rounding in (Float32Matmul.highest, Float32Matmul.medium):
        kernels = {"float32_matmul_precision": rounding, "attention": Attention.sdpa}
        terms[rounding] = estimate_step_time(
            build_plan(card="cpu", precision=Precision.fp32, trainer=kernels)
        ).terms_seconds
    exact, rounded = terms.values()
    assert rounded["attention"] == exact["attention"]
    assert 0.5 < rounded["matmul"] / exact["matmul"] < 0.6


def test_accumulation_multiplies_passes_but_not_optimizer_and_exchange() -> None:
    one, five = (estimate_step_time(build_plan(n_gpus=4, grad_accum_steps=n)).terms_seconds for n in (1, 5))
    assert five["matmul"] == pytest.approx(5 * one["matmul"])
    assert five["optimizer"] == one["optimizer"]
    assert five["all_reduce"] == one["all_reduce"]


def test_small_models_wait_for_the_host() -> None:
    estimate = estimate_step_time(build_plan(model="tiny", card=A100_80GB, micro_batch_size=1, sequence_length=64))
    assert estimate.seconds is not None
    assert estimate.terms_seconds["launch_floor"] > 0.5 * estimate.seconds.mid


def test_rank_with_one_core_has_no_threads_to_wake() -> None:
    """2 layers on 2 cores: 1 ms and 2 x (2 + 4) ms; a rank a core 1 ms and 2 x 2 ms."""
    both, each = (build_plan(model="tiny", card="cpu", n_gpus=n, compile=False) for n in (1, 2))
    both, each = (replace(plan, hw=replace(plan.hw, n_cpu_cores=2)) for plan in (both, each))
    assert estimate_step_time(both).terms_seconds["launch_floor"] == pytest.approx(13e-3)
    assert estimate_step_time(each).terms_seconds["launch_floor"] == pytest.approx(5e-3)


def test_mfu_is_held_against_the_arithmetic_of_the_products() -> None:
    """An A100 lists 156 TFLOPS in TF32, 19.5 in fp32; a processor's `medium` has the 400 GFLOPS of its bf16."""
    peaks = {("a100_80gb", Float32Matmul.highest): 19.5e12, ("a100_80gb", Float32Matmul.medium): 156e12,
             ("cpu", Float32Matmul.high): 200e9, ("cpu", Float32Matmul.medium): 400e9}  # fmt: skip
    for (card, rounding), peak in peaks.items():
        plan = build_plan(card=card, precision=Precision.fp32, trainer={"float32_matmul_precision": rounding})
        step = estimate_step_time(plan)
        assert step.peak_flops_per_second == peak
        assert step.mfu is not None
        assert step.mfu < 1


def test_unknown_rate_gives_unknown_time() -> None:
    estimate = estimate_step_time(build_plan(card=replace(RTX_4090, peak_flops_per_second={})))
    assert estimate.seconds is None
    assert estimate.mfu is None
    assert estimate.raw_seconds is None
    assert estimate.flops_per_step > 0


def test_uncalibrated_band_surrounds_the_formula() -> None:
    estimate = estimate_step_time(build_plan())
    assert estimate.seconds is not None
    assert estimate.raw_seconds is not None
    assert estimate.seconds.low == pytest.approx(CUDA.low_factor * estimate.raw_seconds)
    assert estimate.seconds.high == pytest.approx(CUDA.high_factor * estimate.raw_seconds)


def test_calibration_scales_mid_and_terms_and_replaces_the_band() -> None:
    plan = build_plan()
    factor = Factor(value=1.1, low=1.05, high=1.2, n_runs=4, scope="same card")
    raw, scaled = estimate_step_time(plan), estimate_step_time(calibrated(plan, factor))
    assert raw.raw_seconds is not None
    assert scaled.seconds is not None
    assert scaled.raw_seconds == raw.raw_seconds
    assert (scaled.seconds.low, scaled.seconds.mid, scaled.seconds.high) == pytest.approx(
        (1.05 * raw.raw_seconds, 1.1 * raw.raw_seconds, 1.2 * raw.raw_seconds)
    )
    assert scaled.terms_seconds["matmul"] == pytest.approx(1.1 * raw.terms_seconds["matmul"])
    assert "4 runs" in scaled.seconds.source


def test_two_ranks_on_one_cpu_are_hardly_faster_than_one() -> None:
    one = mid_seconds(build_plan(card="cpu", n_gpus=1, grad_accum_steps=2))
    two = mid_seconds(build_plan(card="cpu", n_gpus=2, grad_accum_steps=1))
    assert 0.8 * one < two < 1.3 * one


def test_bf16_is_several_times_faster_than_fp32_on_an_a100() -> None:
    """rasbt's ladder on one A100: about 3.6x from fp32 to bf16."""
    fp32, bf16 = (mid_seconds(build_plan(card=A100_80GB, precision=p)) for p in (Precision.fp32, Precision.bf16))
    assert 3 < fp32 / bf16 < 9


def test_pcie_without_peer_to_peer_makes_two_cards_slower_than_one_for_short_sequences() -> None:
    """huggingface/transformers#9371, 2 x TITAN RTX, gpt2, block 128: 19.6 s alone, 30.0 s together, NVLink 13.5 s."""
    per_step = {"micro_batch_size": 4, "sequence_length": 128, "precision": Precision.fp32}
    alone = 2 * mid_seconds(build_plan(card=TITAN_RTX, **per_step))
    together = mid_seconds(build_plan(card=TITAN_RTX, n_gpus=2, **per_step))
    nvlink = replace(TITAN_RTX, nvlink_bytes_per_second=100e9)
    assert together > alone
    assert mid_seconds(build_plan(card=nvlink, n_gpus=2, **per_step)) < alone


def test_accumulating_forty_times_for_characters_costs_forty_steps() -> None:
    """karpathy/nanoGPT#225: accumulation 1 and 40 differ by about the factor; nobody was warned."""
    one, forty = (
        mid_seconds(
            build_plan(model=CHARACTERS, card=A100_80GB, micro_batch_size=64, sequence_length=256, grad_accum_steps=n)
        )
        for n in (1, 40)
    )
    assert 30 < forty / one <= 40
