"""What this computer is: processors, memory, cards, disk, torchrun's environment. Torch is never imported here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card as the driver reports it. None: the driver does not say."""

    index: int
    name: str  # "NVIDIA GeForce RTX 4090"
    memory_total_bytes: int
    memory_free_bytes: int
    compute_capability: float | None
    power_limit_watts: float | None
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """torchrun's environment, when it is in charge."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A snapshot; everything downstream judges this value and looks at nothing else."""

    hostname: str
    platform: str  # linux | darwin | windows | wsl
    cpu_name: str
    n_cpu_cores: int  # that this process may use (affinity and cgroup quota)
    cpu_flags: frozenset[str]  # of avx2 avx512f avx512_bf16 amx_bf16 neon bf16
    cpu_hertz: float | None
    memory_total_bytes: int  # cgroup limit counted
    memory_available_bytes: int
    gpus: tuple[Gpu, ...]  # visible ones (CUDA_VISIBLE_DEVICES counted)
    apple_gpu: str | None  # "Apple M2" where MPS is
    disk_free_bytes: int  # on the volume of runs_dir
    python: str
    torch: str | None  # from package metadata
    world: World | None
    wandb_key: bool  # an API key is configured


def probe(runs_dir: Path) -> Machine:
    """Look once. Bounded: no call here waits on the network."""
    raise NotImplementedError
