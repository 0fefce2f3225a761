"""What do the ranks share out among them, and how does a checkpoint become whole again?

ddp     nothing: every rank holds all, and gradients are averaged (torch.nn.parallel).
zero1   optimizer states, whole tensors of them: ZeroRedundancyOptimizer beside DDP; each rank updates its tensors and
        sends them to the others (Rajbhandari et al. 2020).
zero2   states and gradients, a slice of every tensor (FSDP2, `fully_shard`); weights are gathered in the forward pass
        and kept until the backward pass has used them.
zero3   the weights too: each block's are gathered for its forward and again for its backward pass.

Under FSDP2 16-bit precision gathers, computes and keeps the residual stream in 16 bits; gradients are summed and kept
in fp32. Checkpoints hold whole, unwrapped tensors in the plain optimizer's order, so that any number of ranks, and any
of the four, goes on from them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from conf.choices import Parallel
from preflight.errors import TrainingFailed
from preflight.machine.snapshot import World
from preflight.plan import TrainerPlan
from trainers import distributed
from trainers.drawing import materialise
from trainers.gpt import GPT
from trainers.optimizers import Combined, Group, Make, make_here
from trainers.precision import AUTOCAST_DTYPES, weight_dtype

SLICED = (Parallel.zero2, Parallel.zero3)
# Dropout draws what it draws without the compiler: a run that is resumed with compile on or off goes on with its masks.
EAGER_RANDOMNESS: dict[str, str | int | bool | Callable[..., object]] = {"fallback_random": True}


def birthplace(trainer: TrainerPlan, world: World, device: torch.device) -> torch.device:
    """Where the whole model is made: nowhere, when a process need not hold it; given weights are read on the host."""
    if world.world_size == 1 or trainer.parallel not in SLICED:
        return device
    return torch.device("meta" if trainer.init_from is None else "cpu")


def shard(model: GPT, trainer: TrainerPlan, world: World, device: torch.device) -> None:
    """In place, before the optimizer is made: parameters become slices where the plan says so, a block at a time."""
    if world.world_size == 1 or trainer.parallel not in SLICED:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    compute = AUTOCAST_DTYPES.get(trainer.precision)
    mesh = init_device_mesh(device.type, (world.world_size,))
    in_blocks = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    outside = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32, output_dtype=torch.float32)
    outer = {name: part for name, part in model.transformer.items() if name != "h"}
    blocks = list(model.transformer["h"].children())
    finish = partial(materialise, n_layer=len(blocks), dtype=weight_dtype(trainer.precision))
    for name, part in outer.items():
        if name != "ln_f":
            finish(part)
    model.tie()
    for block in blocks:
        finish(block)
        if trainer.compile:
            block.compile(options=EAGER_RANDOMNESS)  # each alone: the gathering between them is no part of a graph
        fully_shard(block, mesh=mesh, mp_policy=in_blocks, reshard_after_forward=trainer.parallel is Parallel.zero3)
    finish(outer["ln_f"])
    finish(model.lm_head)
    fully_shard(model, mesh=mesh, mp_policy=outside, reshard_after_forward=False)  # its backward pass comes at once
    distributed.keep_until_exit(model)


def wrap(model: nn.Module, trainer: TrainerPlan, world: World, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """What evaluates and what trains: compiled, and its gradients averaged over the ranks."""
    if world.world_size > 1 and trainer.parallel in SLICED:
        return model, model
    compiled: nn.Module = torch.compile(model, options=EAGER_RANDOMNESS) if trainer.compile else model  # type: ignore[assignment]
    if world.world_size == 1:
        return compiled, compiled
    trained = DistributedDataParallel(
        compiled,
        device_ids=[world.local_rank] if device.type == "cuda" else None,
        gradient_as_bucket_view=trainer.bucket_views,
    )
    distributed.keep_until_exit(trained)
    return compiled, trained


def maker(trainer: TrainerPlan, world: World) -> Make:
    """How optimizers are made: whole, or a part of the tensors on each rank."""
    return _shared_out if world.world_size > 1 and trainer.parallel is Parallel.zero1 else make_here


def clip_gradients(model: nn.Module, max_norm: float) -> Tensor:
    """To a norm over all parameters and all ranks' slices; the norm before."""
    return _gathered(nn.utils.clip_grad_norm_(model.parameters(), max_norm))


def whole_model(model: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """Every rank calls it; those that do not keep it get nothing back. Frozen weights are not trained, nor saved."""
    frozen = {name for name, parameter in model.named_parameters(remove_duplicate=False) if not parameter.requires_grad}
    state = {name: value for name, value in model.state_dict().items() if name not in frozen}
    return {name: whole for name, value in state.items() if (whole := _kept(value, keep=keep)) is not None}


def whole_optimizer(optimizer: Optimizer, *, keep: bool) -> dict[str, Any]:
    """As the plain optimizer would say it; every rank calls it."""
    if isinstance(optimizer, Combined):
        return {"parts": [whole_optimizer(part, keep=keep) for part in optimizer.parts]}
    if dist.is_initialized() and hasattr(optimizer, "consolidate_state_dict"):  # ZeroRedundancyOptimizer
        optimizer.consolidate_state_dict(to=0)
        return optimizer.state_dict() if keep else {}
    return _map_tensors(optimizer.state_dict(), partial(_kept, keep=keep))


def load_whole(model: nn.Module, optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """The inverse of both: each rank takes its slices of what every rank has read."""
    current = model.state_dict()
    missing = current.keys() - saved["model"].keys()
    frozen = {name for name, parameter in model.named_parameters(remove_duplicate=False) if not parameter.requires_grad}
    if missing - frozen or saved["model"].keys() - current.keys():
        names = sorted((missing - frozen) | (saved["model"].keys() - current.keys()))
        raise RuntimeError(f"the checkpoint's weights are another model's: {', '.join(names[:3])}")
    model.load_state_dict({name: _like(value, current[name]) for name, value in saved["model"].items()}, strict=False)
    try:
        _load_optimizer(optimizer, saved["optimizer"])
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise TrainingFailed(f"the checkpoint's states are another optimizer's: {error!r}") from error


def _load_optimizer(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    if isinstance(optimizer, Combined):
        for part, state in zip(optimizer.parts, saved["parts"], strict=True):
            _load_optimizer(part, state)
        optimizer.relink()
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = {
        index: {key: _like(value, parameters[index]) for key, value in state.items()}
        for index, state in saved["state"].items()
    }
    optimizer.load_state_dict({**saved, "state": states})


def _shared_out(groups: list[Group], rule: type[Optimizer], settings: dict[str, Any]) -> Optimizer:
    with warnings.catch_warnings():  # importing it compiles optimizers of no use here with torch.jit
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(groups, optimizer_class=rule, **settings)


def _gathered(value: Tensor) -> Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _kept(value: Tensor, *, keep: bool) -> Tensor | None:
    """Whole, on the host where it had to be put together."""
    if not hasattr(value, "full_tensor"):
        return value if keep else None
    whole = value.full_tensor()
    return whole.cpu() if keep else None


def _like(value: Any, current: Tensor) -> Any:
    """The slice of this rank where `current` is sliced and has the same whole shape."""
    if not hasattr(current, "full_tensor") or not isinstance(value, Tensor) or value.shape != current.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    here = value.to(current.device)
    return distribute_tensor(here, current.device_mesh, current.placements, src_data_rank=None)  # type: ignore[attr-defined]


def _map_tensors(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_tensors(item, change) for key, item in value.items()}
    return [_map_tensors(item, change) for item in value] if isinstance(value, list) else value
