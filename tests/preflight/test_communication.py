"""All-reduce seconds against NCCL tables that others measured, and what hides behind the backward pass."""

from dataclasses import replace
from math import ceil

import pytest

from conf.choices import Adapter, Parallel
from preflight.params import count_params
from preflight.plan import Precision
from preflight.step_time.communication import Fabric, all_reduce_seconds, exposed_seconds, fabric
from preflight.step_time.implementation import OUR_TRAINER, Implementation
from tests.conftest import A100_80GB, CPU, RTX_4090, build_plan

MIB = 2**20
SHARDED = Implementation(sharded=True)


@pytest.mark.parametrize(
    ("n_ranks", "size_mib", "measured_us"),
    [(4, 64, 543.8), (4, 512, 3720.0), (8, 64, 579.9), (8, 128, 1162.0), (8, 512, 4191.5), (8, 1024, 8193.0)],
)
def test_a100_all_reduce_is_as_nccl_measured(n_ranks: int, size_mib: int, measured_us: float) -> None:
    """VIA-Research/vTrain's tables, sizes that gradients have; two ranks reach 15 % less than four."""
    over = fabric(build_plan(card=A100_80GB, n_gpus=n_ranks).hw)
    one_message = Fabric(bus_bytes_per_second=over.bus_bytes_per_second, latency_seconds=0.0)
    seconds = all_reduce_seconds(size_mib * MIB, n_ranks, one_message) + over.latency_seconds
    assert seconds * 1e6 == pytest.approx(measured_us, rel=0.2)


def test_buckets_pay_their_latency() -> None:
    over = Fabric(bus_bytes_per_second=1e9, latency_seconds=1e-3)
    assert all_reduce_seconds(50 * MIB, 2, over) == pytest.approx(50 * MIB / 1e9 + 2e-3)


def test_one_rank_exchanges_nothing() -> None:
    assert exposed_seconds(build_plan(), 10**8, 0.1, OUR_TRAINER) == 0.0


def test_the_last_bucket_never_hides() -> None:
    plan = build_plan(card=RTX_4090, n_gpus=2)
    hidden = exposed_seconds(plan, 10**8, 1e9, OUR_TRAINER)
    assert hidden == all_reduce_seconds(4 * 50304 * 768, 2, fabric(plan.hw))  # the token embedding's gradient


def test_nothing_hides_without_overlap() -> None:
    plan = build_plan(card=RTX_4090, n_gpus=2)
    code = Implementation(overlapped=False)
    n_last = 50304 * 768
    both = [all_reduce_seconds(4 * n, 2, fabric(plan.hw)) for n in (n_last, 10**8 - n_last)]
    assert exposed_seconds(plan, 10**8, 1e9, code) == pytest.approx(sum(both))


def test_gradients_of_two_bytes_travel_in_half_the_time() -> None:
    whole, half = (build_plan(card=RTX_4090, n_gpus=2, precision=p) for p in (Precision.bf16, Precision.bf16_pure))
    times = [exposed_seconds(plan, 10**9, 0.0, OUR_TRAINER) for plan in (whole, half)]
    assert times[1] == pytest.approx(times[0] / 2, rel=0.01)


def test_adapters_alone_travel() -> None:
    plan = build_plan(card=RTX_4090, n_gpus=2, trainer={"adapter": Adapter.lora})
    expected = all_reduce_seconds(4 * 10**6, 2, fabric(plan.hw))
    assert exposed_seconds(plan, 10**6, 0.0, OUR_TRAINER) == pytest.approx(expected)


def test_nvlink_beats_pcie_with_peer_to_peer_beats_pcie_through_the_host() -> None:
    nvlink, pcie = A100_80GB, replace(A100_80GB, nvlink_bytes_per_second=0.0)
    no_p2p = replace(pcie, p2p=False)
    rates = [fabric(build_plan(card=card, n_gpus=4).hw).bus_bytes_per_second for card in (nvlink, pcie, no_p2p)]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == 3


def test_nodes_are_joined_by_their_adapters() -> None:
    """Eight A100 with a 200 Gb/s adapter each: 160 GB/s a node; NVLink inside gives 231."""
    assert fabric(build_plan(card=A100_80GB, n_gpus=8, n_nodes=2).hw).bus_bytes_per_second == pytest.approx(160e9)
    consumer = fabric(build_plan(card=RTX_4090, n_gpus=8, n_nodes=2).hw)
    assert consumer.bus_bytes_per_second == pytest.approx(2.5e9)


def test_ranks_on_a_cpu_talk_through_gloo() -> None:
    assert fabric(build_plan(card=CPU, n_gpus=2).hw).bus_bytes_per_second < 10e9


def test_given_network_counts_in_place_of_the_usual_one() -> None:
    hw = replace(build_plan(card=A100_80GB, n_gpus=8, n_nodes=2).hw, network_bytes_per_second=100e9 / 8)
    assert fabric(hw).bus_bytes_per_second == pytest.approx(0.8 * 12.5e9)


def test_sharding_exchanges_in_every_pass() -> None:
    one, four = (build_plan(card=A100_80GB, n_gpus=8, grad_accum_steps=n) for n in (1, 4))
    times = [exposed_seconds(plan, 7 * 10**9, 0.0, SHARDED) for plan in (one, four)]
    assert times[1] == pytest.approx(4 * times[0])


@pytest.mark.parametrize(("parallel", "n_messages"), [(Parallel.zero2, 2), (Parallel.zero3, 3)])
def test_weights_are_gathered_once_or_twice_and_gradients_scattered(parallel: Parallel, n_messages: int) -> None:
    plan = build_plan(card=RTX_4090, n_gpus=2, trainer={"parallel": parallel})
    n_bytes = n_messages * 2 * count_params(plan.model, 1024).total
    bus = fabric(plan.hw)
    expected = n_bytes / 2 / bus.bus_bytes_per_second + ceil(n_bytes / (25 * MIB)) * bus.latency_seconds
    assert exposed_seconds(plan, 10**8, 0.0, OUR_TRAINER) == pytest.approx(expected)


def test_zero1_sends_the_weights_as_well() -> None:
    plain, shared = (
        build_plan(card=RTX_4090, n_gpus=2, trainer={"parallel": p}) for p in (Parallel.ddp, Parallel.zero1)
    )
    times = [exposed_seconds(plan, 10**8, 0.0, OUR_TRAINER) for plan in (plain, shared)]
    assert times[1] == pytest.approx(1.5 * times[0], rel=0.02)  # an all-reduce is a scatter and a gather
