"""The machine of a plan: its cards, who sells it, whose electricity it takes. Part of `preflight.plan.RunPlan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class CardKind(Enum):
    """What runs the matmuls."""

    cuda = "cuda"
    rocm = "rocm"
    mps = "mps"
    cpu = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One accelerator (or this CPU), as the catalog or the machine describes it. None: unknown."""

    name: str  # short name, as in hw=4x4090
    label: str  # what people call it: "RTX 4090 24 GB"
    kind: CardKind
    compute_capability: float | None
    memory_bytes: int | None  # what a process can address in total, context included
    bandwidth_bytes_per_second: float | None
    peak_flops_per_second: Mapping[str, float]  # dense, FP32 accumulate, by Precision name
    has_bf16: bool
    watts: float | None  # board power limit
    ecc: bool | None
    nvlink_bytes_per_second: float | None  # both directions, per card; 0 none
    p2p: bool | None  # card to card over PCIe
    pcie_generation: int | None
    source: str
    as_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Billing:
    """How a provider rounds the hours of a machine. None: unknown, so nothing is rounded."""

    increment_seconds: float | None = None  # every started one is paid for
    minimum_seconds: float = 0.0
    source: str = ""
    as_of: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """How often a spot node is taken away: p10, p50 and p90."""

    low_per_hour: float
    mid_per_hour: float
    high_per_hour: float
    source: str
    as_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What action=calibrate found on this machine; it replaces what is listed or assumed. None: not measured."""

    as_of: str  # date
    matmul_flops_per_second: Mapping[str, float]  # the best size, by Precision name: of one card, or of a whole CPU
    bandwidth_bytes_per_second: float | None  # of a copy, reads and writes counted
    pass_seconds: float | None  # host work of one pass without layers
    layer_seconds: float | None  # host work that a layer adds, not compiled
    disk_write_bytes_per_second: float | None  # where the runs are kept, flushed
    disk_read_bytes_per_second: float | None
    bus_bytes_per_second: float | None  # all-reduce between the ranks of a node, NCCL's definition
    bus_latency_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Who sells the machine and for how much, or that it is owned. None: unknown price."""

    provider: str
    instance: str
    usd_per_hour: float | None  # one node with all its cards; 0 for owned hardware (electricity is apart)
    as_of: str
    source: str
    owned: bool
    billing: Billing = Billing()
    interruptions: Interruptions | None = None  # None: nobody takes it away


@dataclass(frozen=True, slots=True, kw_only=True)
class Electricity:
    """Tariff and grid of the place where the machine stands."""

    country: str
    usd_per_kwh: float | None
    g_co2_per_kwh: float | None
    pue: float  # facility power / machine power
    source: str
    as_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HwPlan:
    """The machine the bill is for."""

    card: Card
    n_nodes: int
    n_gpus_per_node: int  # ranks per node, for cpu too
    declared: str  # as asked for: "4x4090", "auto"
    detected: bool  # card facts read off this machine rather than from the catalog
    host_memory_bytes: int | None
    n_cpu_cores: int | None
    disk_bytes_per_second: float | None
    offer: Offer
    alternative: Offer | None  # the other reading of the money, shown in a second line
    electricity: Electricity
    host_watts: float | None  # CPU, RAM and fans of one node
    watts: float | None  # of one node in training, when given
    measured: Measured | None = None
    network_bytes_per_second: float | None = None  # of one node, as listed; None: the usual adapters of such nodes

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.n_nodes * self.n_gpus_per_node
