"""Rates of cards: which peak counts, how width and power take from it, how ranks share a CPU."""

from dataclasses import replace

import pytest

from preflight.catalog import card_names, find_card
from preflight.hw_plan import Measured
from preflight.plan import Precision
from preflight.step_time.card_rates import best_matmul_flops_per_second, card_rates, peak_flops_per_second
from preflight.step_time.constants import CONSTANTS, CUDA
from tests.conftest import A100_80GB, CPU, RTX_4090, build_plan

V100 = replace(
    A100_80GB, name="v100", compute_capability=7.0, has_bf16=False, watts=300.0, bandwidth_bytes_per_second=900e9,
    peak_flops_per_second={"fp32": 15.7e12, "fp16": 125e12},
)  # fmt: skip
NOTHING_MEASURED = Measured(
    as_of="2026-11-30", matmul_flops_per_second={}, bandwidth_bytes_per_second=None, pass_seconds=None,
    layer_seconds=None, disk_write_bytes_per_second=None, disk_read_bytes_per_second=None, bus_bytes_per_second=None,
    bus_latency_seconds=None,
)  # fmt: skip


def test_tf32_without_its_units_is_fp32() -> None:
    assert peak_flops_per_second(V100, Precision.tf32) == 15.7e12


@pytest.mark.parametrize("name", card_names())
def test_leave_to_round_never_makes_a_card_slower(name: str) -> None:
    hw = build_plan(card=find_card(name)).hw
    fp32, tf32 = (card_rates(hw, precision, CUDA) for precision in (Precision.fp32, Precision.tf32))
    assert (fp32 is None) == (tf32 is None)
    if fp32 is not None and tf32 is not None:
        assert tf32.matmul_flops_per_second >= fp32.matmul_flops_per_second
        assert tf32.attention_flops_per_second >= fp32.attention_flops_per_second


def test_what_was_measured_in_fp32_is_the_least_of_tf32() -> None:
    hw = build_plan(card=RTX_4090).hw
    for tf32, expected in ((None, 80e12), (75e12, 80e12), (90e12, 90e12)):
        rates = {"fp32": 80e12} | ({} if tf32 is None else {"tf32": tf32})
        found = replace(NOTHING_MEASURED, matmul_flops_per_second=rates)
        assert best_matmul_flops_per_second(replace(hw, measured=found), Precision.tf32) == expected


def test_bf16_without_its_units_runs_as_fp32() -> None:
    assert peak_flops_per_second(V100, Precision.bf16) == 15.7e12


def test_fp16_on_a_v100_has_its_tensor_cores() -> None:
    assert peak_flops_per_second(V100, Precision.fp16) == 125e12


def test_unknown_rate_stays_unknown() -> None:
    unknown = replace(A100_80GB, peak_flops_per_second={})
    assert peak_flops_per_second(unknown, Precision.fp32) is None
    plan = build_plan(card=replace(A100_80GB, bandwidth_bytes_per_second=None))
    assert card_rates(plan.hw, Precision.bf16, CUDA) is None


def test_a100_sustains_87_percent_of_its_peak_times_the_sustained_fraction() -> None:
    rates = card_rates(build_plan(card="a100_80gb").hw, Precision.bf16, CUDA)
    assert rates is not None
    assert rates.matmul_flops_per_second == pytest.approx(312e12 * 0.87 * CUDA.sustained_fraction)


def test_a_card_short_of_watts_falls_behind() -> None:
    """H100 PCIe: 350 W for 756 TFLOPS is 0.463 W per TFLOPS of the 1.28 that an A100 has."""
    starved = replace(A100_80GB, watts=200.0)  # 0.641 W per TFLOPS: half
    full, half = (card_rates(build_plan(card=card).hw, Precision.bf16, CUDA) for card in (A100_80GB, starved))
    assert full is not None
    assert half is not None
    ratio = half.matmul_flops_per_second / full.matmul_flops_per_second
    assert ratio == pytest.approx((200 / (312 * 1.28)) ** CUDA.power_exponent)


def test_a_wide_matmul_reaches_more_of_the_rate() -> None:
    rates = card_rates(build_plan(card="a100_80gb").hw, Precision.bf16, CUDA)
    assert rates is not None
    assert rates.matmul_flops_per_second_at(768) < rates.matmul_flops_per_second_at(4096)
    assert rates.matmul_flops_per_second_at(int(rates.knee_width)) == pytest.approx(
        rates.matmul_flops_per_second / 2, rel=0.01
    )


def test_ranks_share_one_cpu_but_not_cards() -> None:
    constants = CONSTANTS[CPU.kind]
    one = card_rates(build_plan(card="cpu", n_gpus=1).hw, Precision.fp32, constants)
    two = card_rates(build_plan(card="cpu", n_gpus=2).hw, Precision.fp32, constants)
    assert one is not None
    assert two is not None
    assert two.matmul_flops_per_second == one.matmul_flops_per_second / 2
    assert two.bytes_per_second == one.bytes_per_second / 2
    four = card_rates(build_plan(card=RTX_4090, n_gpus=4).hw, Precision.bf16, CUDA)
    assert four == card_rates(build_plan(card=RTX_4090).hw, Precision.bf16, CUDA)
