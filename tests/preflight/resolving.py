"""Machines and short ways from a command line to a plan, or to what is wrong with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conf.compose import compose
from conf.register import Chosen
from conf.schema import Config
from preflight.errors import ConfigError, Problem
from preflight.machine.snapshot import Gpu, Machine, World
from preflight.plan import RunPlan
from preflight.resolve.resolve import resolve
from preflight.units import GIB, MIB

CHOSEN: Chosen = {}  # thousands of command lines choose the same few files
CREATED_AT = "2026-11-30T12:00:00+00:00"
LAPTOP = Machine(
    hostname="laptop",
    platform="linux",
    cpu_name="Test CPU",
    n_cpu_cores=2,
    cpu_flags=frozenset({"avx2", "avx512f", "avx512_bf16", "amx_bf16"}),
    cpu_hertz=3e9,
    memory_total_bytes=16 * GIB,
    memory_available_bytes=14 * GIB,
    gpus=(),
    apple_gpu=None,
    disk_free_bytes=100 * GIB,
    python="3.11.7",
    torch="2.13.0",
    world=None,
    wandb_key=False,
)
RTX_4090 = Gpu(
    index=0,
    name="NVIDIA GeForce RTX 4090",
    memory_total_bytes=24564 * MIB,
    memory_free_bytes=24000 * MIB,
    compute_capability=8.9,
    power_limit_watts=400.0,
    driver="570.86.15",
)


def with_gpus(*gpus: Gpu) -> Machine:
    """The laptop with cards in it."""
    return replace(LAPTOP, gpus=gpus)


def under_torchrun(machine: Machine, world_size: int, local_world_size: int | None = None) -> Machine:
    """The same machine, seen by rank 0."""
    local = world_size if local_world_size is None else local_world_size
    return replace(machine, world=World(rank=0, local_rank=0, world_size=world_size, local_world_size=local))


def config_of(*overrides: str) -> Config:
    """No token files are found, wherever the tests run."""
    config = compose(overrides, CHOSEN).config
    assert config is not None
    if config.data.dir == "data":
        config.data.dir = "/nowhere/data"
    return config


def resolved(*overrides: str, machine: Machine = LAPTOP) -> RunPlan:
    """The plan of a command line."""
    return resolve(config_of(*overrides), machine, command="python launch.py", created_at=CREATED_AT)


def problems_of(*overrides: str, machine: Machine = LAPTOP) -> tuple[Problem, ...]:
    """What is wrong with a command line."""
    with pytest.raises(ConfigError) as caught:
        resolved(*overrides, machine=machine)
    return caught.value.problems


def problem_of(*overrides: str, machine: Machine = LAPTOP) -> Problem:
    """The only fault."""
    (problem,) = problems_of(*overrides, machine=machine)
    return problem
