"""Ranks: who they are, how they agree, and that two of them train what one would."""

# ruff: noqa: TID253 - torch is what is tested here
from __future__ import annotations

import json
import multiprocessing
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from preflight.hw_plan import CardKind
from preflight.machine.snapshot import World
from preflight.plan import RunPlan
from tests.trainers.stopping_at import StopAt
from trainers import checkpoint, distributed
from trainers.job import Job, NeverStop
from trainers.outcome import leave
from trainers.pretrain import train

TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}


def train_as(rank: int, ports: list[int], jobs: list[Job]) -> None:
    """The body of a spawned process: one job after the other."""
    for port, job in zip(ports, jobs, strict=True):
        os.environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
        with open(os.devnull, "w") as silence:
            actual = train(replace(job, progress=silence))
        numbers = [actual.n_steps_done, actual.exit_code, actual.val_loss]
        (job.run_dir / f"actual-{rank}.json").write_text(json.dumps(numbers))
    leave(0)  # as every rank ends


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def train_on_two_ranks(*jobs: Job) -> list[list[Any]]:
    """Steps, exit code and held-out loss by job and rank."""
    spawn = multiprocessing.get_context("spawn")
    silent = [replace(job, progress=None) for job in jobs]
    ports = [free_port() for _ in jobs]
    processes = [spawn.Process(target=train_as, args=(rank, ports, silent)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    return [[json.loads((job.run_dir / f"actual-{rank}.json").read_text()) for rank in range(2)] for job in jobs]


def losses(job: Job) -> list[float]:
    lines = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line.get("train/loss", line.get("val/loss")) for line in lines]


def on_two_ranks(plan: RunPlan) -> RunPlan:
    """The same global batch."""
    return replace(
        plan,
        hw=replace(plan.hw, n_gpus_per_node=2),
        trainer=replace(plan.trainer, grad_accum_steps=plan.trainer.grad_accum_steps // 2),
    )


def test_world_from_environment_reads_torchrun_or_is_alone():
    expected = World(rank=5, local_rank=1, world_size=8, local_world_size=4)
    assert distributed.world_from_environment(TORCHRUN) == expected
    assert distributed.world_from_environment({}) == World(rank=0, local_rank=0, world_size=1, local_world_size=1)


def test_pick_device_is_the_processor_for_cpu_plans():
    assert distributed.pick_device(CardKind.cpu, distributed.world_from_environment(TORCHRUN)).type == "cpu"


@pytest.mark.parametrize(
    ("environ", "n_ranks", "expected"),
    [({}, 1, 6), ({"OMP_NUM_THREADS": "1"}, 1, 3), ({"OMP_NUM_THREADS": "1"}, 2, 3), ({}, 8, 1)],
)
def test_share_cpu_threads_splits_the_cores_fairly(environ: dict[str, str], n_ranks: int, expected: int):
    torch.set_num_threads(3)
    world = World(rank=0, local_rank=0, world_size=n_ranks, local_world_size=n_ranks)
    distributed.share_cpu_threads(6, world, environ)
    assert torch.get_num_threads() == expected


def test_one_rank_agrees_with_itself():
    assert distributed.max_over_ranks([1.5, -2.0]) == [1.5, -2.0]
    assert distributed.mean_over_ranks([1.5]) == [1.5]
    assert distributed.begin_vote(3)() == 3
    distributed.wait_for_all()
    distributed.leave()


def test_two_ranks_train_what_one_does_and_stop_together(
    small_plan: Callable[..., RunPlan], make_job: Callable[..., Job]
):
    """One pair of processes for all that needs two: starting them takes longer than what they do."""
    plan = small_plan(n_steps=6, micro_batch_size=2, grad_accum_steps=4, trainer={"eval_interval": 3}, dropout=0.1)
    one, two = make_job(plan, "one"), make_job(on_two_ranks(plan), "two")
    stopped = make_job(on_two_ranks(plan), "stopped", stop=StopAt(3, rank=1))
    alone = train(one)
    both, both_stopped = train_on_two_ranks(two, stopped)

    assert [result[:2] for result in both] == [[6, 0], [6, 0]]
    assert both[0][2] == both[1][2] == pytest.approx(alone.val_loss, abs=1e-5)
    assert losses(two) == pytest.approx(losses(one), abs=1e-5)  # fp32 sums in another order
    weights = [checkpoint.load(checkpoint.path_of(job.run_dir, 6))["model"] for job in (one, two)]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=1e-3, atol=2e-5)

    assert [result[:2] for result in both_stopped] == [[3, 143], [3, 143]]  # rank 1 alone was asked
    assert train(replace(stopped, plan=plan, stop=NeverStop(), resume=True)).n_steps_done == 6  # on one rank
    assert losses(stopped) == pytest.approx(losses(one), abs=1e-5)
