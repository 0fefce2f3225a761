"""Seconds of the optimizer's own step, worked by hand from bytes and operations."""

import pytest

from conf.choices import Adapter, Optimizer, OptimizerKernel, Parallel
from preflight.plan import Precision, RunPlan
from preflight.step_time.card_rates import CardRates
from preflight.step_time.constants import CUDA
from preflight.step_time.optimizer import optimizer_seconds
from preflight.step_time.step import estimate_step_time
from preflight.step_time.terms import trained_params
from tests.conftest import A100_80GB, build_plan

RATES = CardRates(
    matmul_flops_per_second=1e12, attention_flops_per_second=1e12, fp32_flops_per_second=1e12, bytes_per_second=1e9,
    knee_width=0.0,
)  # fmt: skip


def _seconds(n_params: int = 10**8, n_sharing: int = 1, **trainer: object) -> float:
    plan = build_plan(card=A100_80GB, trainer={"grad_clip": 0.0} | trainer)
    return optimizer_seconds(plan, n_params, n_sharing, RATES, CUDA)


def test_fused_adamw_moves_28_bytes_a_parameter_and_clipping_12() -> None:
    assert _seconds() == pytest.approx(2.8)
    assert _seconds(grad_clip=1.0) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("optimizer", "kernel", "n_bytes"),
    [
        (Optimizer.adamw, OptimizerKernel.foreach, 84),
        (Optimizer.sgd, OptimizerKernel.fused, 20),
        (Optimizer.sgd, OptimizerKernel.foreach, 44),
        (Optimizer.adamw_8bit, OptimizerKernel.fused, 16),
        (Optimizer.adafactor, OptimizerKernel.foreach, 60),
    ],
)
def test_each_optimizer_moves_its_own_bytes(optimizer: Optimizer, kernel: OptimizerKernel, n_bytes: int) -> None:
    assert _seconds(optimizer=optimizer, optimizer_kernel=kernel) == pytest.approx(n_bytes / 10)


def test_shared_states_take_their_part_of_the_time() -> None:
    assert _seconds(n_sharing=4) == pytest.approx(0.7)


def test_pure_bf16_moves_half() -> None:
    plan = build_plan(card=A100_80GB, precision=Precision.bf16_pure, trainer={"grad_clip": 0.0})
    assert optimizer_seconds(plan, 10**8, 1, RATES, CUDA) == pytest.approx(1.4)


def test_loop_over_small_tensors_waits_for_the_host() -> None:
    assert _seconds(n_params=1000, optimizer_kernel=OptimizerKernel.loop) == pytest.approx(12 * 6 * 10 * 8e-6)


def test_muon_multiplies_the_matrices_of_the_blocks() -> None:
    """GPT-2 124M: 12 layers, 12 x 768^2 weights each, as three 768 x 3072: 5 x (4 x 768 x 7.08M + 2 x 768^3 x 3)."""
    n_matrix_params = 12 * 12 * 768**2
    flops = 12 * 5 * (4 * 768 * 12 * 768**2 + 2 * 768**3 * 3)
    kernel = {"optimizer": Optimizer.muon, "optimizer_kernel": OptimizerKernel.fused}
    n_rest = 10**8 - n_matrix_params
    traffic = (40 * n_matrix_params + 28 * n_rest) / 1e9
    assert _seconds(**kernel) == pytest.approx(traffic + flops / 0.5e12)


def _step(**trainer: object) -> RunPlan:
    return build_plan(card=A100_80GB, micro_batch_size=4, trainer=trainer)


def test_frozen_weights_save_a_third_of_the_matmuls_and_the_optimizer() -> None:
    full, lora = (estimate_step_time(_step(adapter=adapter)) for adapter in (Adapter.none, Adapter.lora))
    assert lora.terms_seconds["matmul"] == pytest.approx(2 / 3 * full.terms_seconds["matmul"])
    assert lora.terms_seconds["adapters"] > 0
    assert lora.terms_seconds["optimizer"] < 0.02 * full.terms_seconds["optimizer"]
    assert lora.flops_per_step < 0.75 * full.flops_per_step


def test_lora_of_rank_8_on_every_linear_of_gpt2_trains_1_327_104_parameters() -> None:
    """Query, key, value, output 768 + 768 each, up and down 768 + 3072 each: 13,824 x rank x layers."""
    assert trained_params(_step(adapter=Adapter.lora)) == 12 * 8 * (4 * (768 + 768) + 2 * (768 + 3072))


def test_four_bit_weights_are_unpacked_in_both_directions() -> None:
    lora, qlora = (estimate_step_time(_step(adapter=a)) for a in (Adapter.lora, Adapter.qlora))
    extra = qlora.terms_seconds["elementwise"] - lora.terms_seconds["elementwise"]
    assert extra == pytest.approx(2 * 4.5 * 12 * 12 * 768**2 / (0.85 * 2039e9))


def test_sharding_slows_matmuls_and_shares_the_optimizer() -> None:
    plain, sharded = (
        estimate_step_time(build_plan(card=A100_80GB, n_gpus=8, trainer={"parallel": parallel}))
        for parallel in (Parallel.ddp, Parallel.zero3)
    )
    assert sharded.terms_seconds["optimizer"] == pytest.approx(plain.terms_seconds["optimizer"] / 8)
    assert sharded.terms_seconds["matmul"] > plain.terms_seconds["matmul"]
