"""Who am I among the ranks, on which device, and how do ranks agree? torchrun's environment in, a process group out.

Small agreements (stop? worst peak? mean loss?) travel as CPU tensors over gloo, also beside NCCL, so that asking never
makes the host wait for the GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from preflight.hw_plan import CardKind
from preflight.machine.snapshot import World

_kept: list[object] = []
TIMEOUT = timedelta(minutes=30)  # of a collective: one rank may prepare data or compile while the others wait


def world_from_environment(environ: Mapping[str, str] = os.environ) -> World:
    """What torchrun set; alone when it set nothing."""
    return World(
        rank=int(environ.get("RANK", 0)),
        local_rank=int(environ.get("LOCAL_RANK", 0)),
        world_size=int(environ.get("WORLD_SIZE", 1)),
        local_world_size=int(environ.get("LOCAL_WORLD_SIZE", 1)),
    )


def pick_device(kind: CardKind, world: World) -> torch.device:
    """The rank's own card; ROCm answers to the name cuda as well."""
    if kind in (CardKind.cuda, CardKind.rocm):
        device = torch.device("cuda", world.local_rank)
        torch.cuda.set_device(device)
        return device
    return torch.device(kind.name)


def share_cpu_threads(n_cpu_cores: int | None, world: World, environ: Mapping[str, str] = os.environ) -> None:
    """Local ranks split the cores; OMP_NUM_THREADS counts only for one rank alone, since torchrun sets it to 1."""
    if world.local_world_size == 1 and "OMP_NUM_THREADS" in environ:
        return
    n_cores = n_cpu_cores or os.cpu_count() or 1
    torch.set_num_threads(max(1, n_cores // world.local_world_size))


def join(world: World, device: torch.device) -> None:
    """Enter the process group; one rank alone needs none."""
    if world.world_size > 1:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, rank=world.rank, world_size=world.world_size, timeout=TIMEOUT)


def keep_until_exit(ddp_model: object) -> None:
    """Never run the destructor of its process group, which can wait for ever.

    It joins gloo's threads while it holds the interpreter lock, and a thread that lets go of a tensor of the last
    collective needs that lock (seen with torch 2.13: ~Reducer -> ~ProcessGroupGloo -> join). Ranks end by
    `trainers.outcome.leave`, which runs no destructors either.
    """
    _kept.append(ddp_model)


def leave() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def max_over_ranks(values: Sequence[float]) -> list[float]:
    """Element-wise maximum; all ranks get it."""
    return _reduced(values, dist.ReduceOp.MAX)


def sum_over_ranks(values: Sequence[float]) -> list[float]:
    """Element-wise sum; all ranks get it."""
    return _reduced(values, dist.ReduceOp.SUM)


def mean_over_ranks(values: Sequence[float]) -> list[float]:
    """Element-wise mean; all ranks get it."""
    n_ranks = dist.get_world_size() if dist.is_initialized() else 1
    return [value / n_ranks for value in sum_over_ranks(values)]


def wait_for_all() -> None:
    """No rank goes on before all have come here."""
    sum_over_ranks([0.0])


def begin_vote(value: int) -> Callable[[], int]:
    """Start agreeing on the largest value of all ranks; calling the result waits for it."""
    if not dist.is_initialized():
        return lambda: value
    ballot = torch.tensor([value])
    work = dist.all_reduce(ballot, dist.ReduceOp.MAX, async_op=True)

    def result() -> int:
        work.wait()
        return int(ballot.item())

    return result


def _reduced(values: Sequence[float], op: dist.ReduceOp.RedOpType) -> list[float]:
    if not dist.is_initialized():
        return list(values)
    tensor = torch.tensor(list(values), dtype=torch.float64)
    dist.all_reduce(tensor, op)
    return tensor.tolist()
