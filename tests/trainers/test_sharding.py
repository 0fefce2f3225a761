"""Shared out or not: the same losses, checkpoints that are whole, and any number of ranks goes on from them."""

# ruff: noqa: TID253 - torch is what is tested here
from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_distributed import losses, on_two_ranks, train_on_two_ranks
from torch.testing._internal.distributed.fake_pg import FakeStore

from conf.choices import Optimizer, OptimizerKernel, Parallel
from preflight.machine.snapshot import World
from preflight.plan import Checkpointing, Precision, RunPlan
from tests.trainers.stopping_at import StopAt
from trainers import checkpoint, sharding
from trainers.build import build_model
from trainers.gpt import GPT
from trainers.job import Job, NeverStop
from trainers.optimizers import make_optimizer
from trainers.pretrain import train

Plans = Callable[..., RunPlan]
Jobs = Callable[..., Job]
T = 16
SETTINGS = {"grad_clip": 0.5}  # low: it is used in every step


def weights(job: Job) -> dict[str, torch.Tensor]:
    path, _ = checkpoint.find_latest(job.run_dir)
    assert path is not None
    model: dict[str, torch.Tensor] = checkpoint.load(path)["model"]
    return model


def changed(plan: RunPlan, **trainer: Any) -> RunPlan:
    return replace(plan, trainer=replace(plan.trainer, **trainer))


def test_ranks_that_share_states_train_what_whole_ones_do(small_plan: Plans, make_job: Jobs, tmp_path: Path):
    """One pair of processes for all: starting them takes longer than what they do."""
    one = small_plan(n_steps=6, grad_accum_steps=4, trainer=SETTINGS)
    two = on_two_ranks(one)
    undisturbed, first_half = make_job(one, "undisturbed"), make_job(one, "first-half", stop=StopAt(3))
    train(undisturbed)
    train(first_half)
    jobs = {kind: make_job(changed(two, parallel=kind), kind.value) for kind in Parallel}
    stopped = make_job(jobs[Parallel.zero3].plan, "stopped", stop=StopAt(3))
    resumed = []
    for kind in (Parallel.zero1, Parallel.zero2, Parallel.zero3):
        shutil.copytree(first_half.run_dir, tmp_path / f"resumed-{kind.value}")
        resumed.append(make_job(jobs[kind].plan, f"resumed-{kind.value}", resume=True))
    muon = changed(two, optimizer=Optimizer.muon)
    muons = [make_job(changed(muon, parallel=kind), f"muon-{kind.value}") for kind in (Parallel.ddp, Parallel.zero1)]
    other_parts = {"loss_chunk_tokens": 24, "activation_checkpointing": Checkpointing.selective}
    half = make_job(changed(two, parallel=Parallel.zero3, precision=Precision.bf16, **other_parts), "bf16")
    train_on_two_ranks(*jobs.values(), stopped, *resumed, *muons, half)

    assert train(replace(stopped, plan=one, stop=NeverStop(), resume=True)).n_steps_done == 6  # on one rank
    whole = weights(undisturbed)
    for job in (*jobs.values(), stopped, *resumed):
        assert losses(job) == pytest.approx(losses(undisturbed), abs=1e-5)  # fp32 sums in another order
        assert weights(job).keys() == whole.keys()
        for name, weight in weights(job).items():
            torch.testing.assert_close(weight, whole[name], rtol=1e-3, atol=2e-5)
    assert losses(muons[1]) == pytest.approx(losses(muons[0]), abs=1e-5)
    assert losses(half) == pytest.approx(losses(undisturbed), rel=0.01)  # a residual stream of 8 bits of mantissa


@pytest.fixture
def world_of_two() -> Iterator[World]:
    """Rank 0 of two; collectives do nothing."""
    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield World(rank=0, local_rank=0, world_size=2, local_world_size=2)
    torch.distributed.destroy_process_group()


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("kind", "weights_share", "states_share"),
    [("ddp", 1.0, 1.0), ("zero1", 1.0, 0.5), ("zero2", 0.5, 0.5), ("zero3", 0.5, 0.5)],
)
def test_rank_holds_its_share(
    small_plan: Plans, world_of_two: World, kind: str, weights_share: float, states_share: float
):
    trainer = changed(small_plan(), parallel=Parallel[kind], optimizer_kernel=OptimizerKernel.loop).trainer
    model = GPT(small_plan().model, T)
    n_params = sum(parameter.numel() for parameter in model.parameters())
    sharding.shard(model, trainer, world_of_two, torch.device("cpu"))
    optimizer = make_optimizer(model, trainer, sharding.maker(trainer, world_of_two))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    held = sum(local(parameter).numel() for parameter in model.parameters())
    inner = getattr(optimizer, "optim", optimizer)
    moments = sum(local(state["exp_avg"]).numel() for state in inner.state.values())
    assert held == pytest.approx(weights_share * n_params, rel=0.01)
    assert moments == pytest.approx(states_share * n_params, rel=0.15)  # whole tensors, as even as they go


def test_zero2_keeps_gathered_weights_for_the_backward_pass_and_zero3_does_not(small_plan: Plans, world_of_two: World):
    for kind, is_whole in (("zero2", True), ("zero3", False)):
        trainer = changed(small_plan(), parallel=Parallel[kind]).trainer
        model = GPT(small_plan().model, T)
        sharding.shard(model, trainer, world_of_two, torch.device("cpu"))
        model(torch.zeros(1, T, dtype=torch.long), torch.zeros(1, T, dtype=torch.long))
        weight = model.transformer["h"][0].mlp.c_fc.weight
        assert (local(weight).shape == (128, 32)) is is_whole


@pytest.mark.parametrize("precision", ["fp32", "bf16_pure"])
@pytest.mark.parametrize("tied", [True, False])
def test_slices_are_drawn_without_the_whole_and_are_the_same_numbers(
    small_plan: Plans, world_of_two: World, precision: str, tied: bool
):
    plan = changed(small_plan(precision=Precision[precision]), parallel=Parallel.zero3)
    plan = replace(plan, model=replace(plan.model, tied_head=tied))
    whole = build_model(plan).state_dict()
    place = sharding.birthplace(plan.trainer, world_of_two, torch.device("cpu"))
    model = build_model(plan, place)
    assert all(parameter.is_meta for parameter in model.parameters())
    sharding.shard(model, plan.trainer, world_of_two, torch.device("cpu"))
    for name, parameter in model.named_parameters():
        mine = local(parameter)
        assert not mine.is_meta
        assert torch.equal(mine, whole[name][: len(mine)])  # rank 0 has the first rows
