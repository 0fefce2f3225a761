"""How long do gradients travel, and how much of it hides behind the backward pass?

Ring all-reduce: 2(n-1)/n x bytes / bus bandwidth + latency (NCCL's own accounting), in DDP's 25 MiB buckets. The
token embedding's gradient is the last to be ready, so its bucket never hides (Li et al. 2020, arXiv:2006.15704).
Sharded training gathers 16-bit weights twice and scatters 16-bit gradients, in every pass (arXiv:2304.11277).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from conf.choices import Adapter, Parallel
from preflight.hw_plan import Card, CardKind, HwPlan, Measured
from preflight.params import count_params
from preflight.plan import Precision, RunPlan
from preflight.priors import link
from preflight.step_time.implementation import Implementation

BUCKET_BYTES = 25 * 2**20  # DistributedDataParallel's default bucket_cap_mb
REFERENCE_PCIE_GENERATION = 4  # of links.csv
OVERLAP_FRACTION = 0.6  # of a pass: its backward part, less what the kernels take from each other
NEVER_HIDDEN_FRACTION = 0.05  # first gather, last scatter
NETWORK_FRACTION = 0.8  # of the listed rate (stas00/ml-engineering, network: 80 % is good)
GRADIENT_BYTES = 4  # fp32, as DDP reduces them
PURE_GRADIENT_BYTES = 2
SHARDED_BYTES = 2  # 16-bit weights are gathered, 16-bit gradients scattered


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """What a collective over all ranks can count on."""

    bus_bytes_per_second: float
    latency_seconds: float


def fabric(hw: HwPlan) -> Fabric:
    """The slower of the links inside a node and between nodes."""
    inside = (_measured_inside(hw.measured) or _inside_node(hw.card)) if hw.n_gpus_per_node > 1 else None
    between = _between_nodes(hw) if hw.n_nodes > 1 else None
    both = [one for one in (inside, between) if one is not None]
    return Fabric(
        bus_bytes_per_second=min(one.bus_bytes_per_second for one in both),
        latency_seconds=sum(one.latency_seconds for one in both),
    )


def _measured_inside(measured: Measured | None) -> Fabric | None:
    """What action=calibrate found between the ranks of this node."""
    if measured is None or measured.bus_bytes_per_second is None or measured.bus_latency_seconds is None:
        return None
    return Fabric(bus_bytes_per_second=measured.bus_bytes_per_second, latency_seconds=measured.bus_latency_seconds)


def _inside_node(card: Card) -> Fabric:
    if card.kind is CardKind.cpu:
        row = link("gloo")
        return Fabric(bus_bytes_per_second=row.bus_bandwidth, latency_seconds=row.latency_seconds)
    if card.nvlink_bytes_per_second:
        row = link("nvlink")
        one_way = card.nvlink_bytes_per_second / 2
        return Fabric(bus_bytes_per_second=row.bus_bandwidth * one_way, latency_seconds=row.latency_seconds)
    row = link("pcie_p2p" if card.p2p else "pcie_no_p2p")
    generation = card.pcie_generation or REFERENCE_PCIE_GENERATION
    speed_up = 2.0 ** (generation - REFERENCE_PCIE_GENERATION)
    return Fabric(bus_bytes_per_second=row.bus_bandwidth * speed_up, latency_seconds=row.latency_seconds)


def _between_nodes(hw: HwPlan) -> Fabric:
    """Nodes whose cards are joined by NVLink come with an adapter a card; others are taken to share one."""
    if hw.network_bytes_per_second is not None:
        latency = link("network_nvlink_nodes" if hw.card.nvlink_bytes_per_second else "network_other_nodes")
        return Fabric(
            bus_bytes_per_second=NETWORK_FRACTION * hw.network_bytes_per_second,
            latency_seconds=latency.latency_seconds,
        )
    if hw.card.nvlink_bytes_per_second:
        row = link("network_nvlink_nodes")
        n_adapters = hw.n_gpus_per_node
    else:
        row = link("network_other_nodes")
        n_adapters = 1
    return Fabric(bus_bytes_per_second=row.bus_bandwidth * n_adapters, latency_seconds=row.latency_seconds)


def all_reduce_seconds(n_bytes: float, n_ranks: int, over: Fabric) -> float:
    """A bucketed ring all-reduce of `n_bytes`."""
    n_buckets = ceil(n_bytes / BUCKET_BYTES)
    return 2 * (n_ranks - 1) / n_ranks * n_bytes / over.bus_bytes_per_second + n_buckets * over.latency_seconds


def exposed_seconds(plan: RunPlan, n_trained: int, pass_seconds: float, code: Implementation) -> float:
    """What a step waits for: the last bucket always, the rest as far as the backward pass is too short to hide it."""
    hw, trainer = plan.hw, plan.trainer
    if hw.world_size == 1:
        return 0.0
    over = fabric(hw)
    if code.sharded or trainer.parallel in (Parallel.zero2, Parallel.zero3):
        return trainer.grad_accum_steps * _sharded_seconds(plan, pass_seconds, over)
    gradient_bytes = PURE_GRADIENT_BYTES if trainer.precision is Precision.bf16_pure else GRADIENT_BYTES
    n_last = min(n_trained, plan.model.vocab_size * plan.model.n_embd) if trainer.adapter is Adapter.none else 0
    last = all_reduce_seconds(gradient_bytes * n_last, hw.world_size, over)
    rest = all_reduce_seconds(gradient_bytes * (n_trained - n_last), hw.world_size, over)
    hidden = OVERLAP_FRACTION * pass_seconds if code.overlapped else 0.0
    weights = 0.0
    if trainer.parallel is Parallel.zero1:  # each rank sends the weights that it has updated
        weights = _one_way_seconds(gradient_bytes * n_trained, hw.world_size, over)
    return last + max(0.0, rest - hidden) + weights


def _one_way_seconds(n_bytes: float, n_ranks: int, over: Fabric) -> float:
    """A gather or a scatter of `n_bytes`: half of an all-reduce."""
    n_buckets = ceil(n_bytes / BUCKET_BYTES)
    return (n_ranks - 1) / n_ranks * n_bytes / over.bus_bytes_per_second + n_buckets * over.latency_seconds


def _sharded_seconds(plan: RunPlan, pass_seconds: float, over: Fabric) -> float:
    """One pass of FSDP: weights gathered (for the backward pass again, unless they are kept), gradients scattered."""
    n_params = count_params(plan.model, plan.trainer.sequence_length).total
    n_gathers = 1 if plan.trainer.parallel is Parallel.zero2 else 2
    each_pass = _one_way_seconds((n_gathers + 1) * SHARDED_BYTES * n_params, plan.hw.world_size, over)
    return max(NEVER_HIDDEN_FRACTION * each_pass, each_pass - OVERLAP_FRACTION * pass_seconds)
