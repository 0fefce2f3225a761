"""Machines with cards in them, and what a check says of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from preflight.checks.check import check
from preflight.machine.snapshot import Gpu, Machine
from preflight.machine.surroundings import NOTHING_KNOWN, Surroundings
from preflight.plan import RunPlan
from preflight.verdict.judge import Finding

GIB = 2**30
MIB = 2**20
MakePlan = Callable[..., RunPlan]


def gpu(index: int = 0, name: str = "NVIDIA GeForce RTX 4090", gib: float = 23.52, **fields: Any) -> Gpu:
    values: dict[str, Any] = {
        "index": index,
        "name": name,
        "memory_total_bytes": int(gib * GIB),
        "memory_free_bytes": int(gib * GIB) - 16 * MIB,
        "compute_capability": 8.9,
        "power_limit_watts": 450.0,
        "driver": "580.95.05",
    }
    return Gpu(**{**values, **fields})


def machine(*gpus: Gpu, **fields: Any) -> Machine:
    values: dict[str, Any] = {
        "hostname": "box",
        "platform": "linux",
        "cpu_name": "AMD EPYC",
        "n_cpu_cores": 16,
        "cpu_flags": frozenset({"avx2"}),
        "cpu_hertz": 2.6e9,
        "memory_total_bytes": 64 * GIB,
        "memory_available_bytes": 60 * GIB,
        "gpus": gpus,
        "apple_gpu": None,
        "disk_free_bytes": 500 * GIB,
        "python": "3.11.7",
        "torch": "2.13.0",
        "world": None,
        "wandb_key": True,
    }
    return Machine(**{**values, **fields})


def found(plan: RunPlan, here: Machine, name: str) -> Finding | None:
    """The finding of one check; None when it has nothing to say."""
    return next((finding for finding in check(plan, here) if finding.check == name), None)


def around(**fields: Any) -> Surroundings:
    """Nothing known but this."""
    return replace(NOTHING_KNOWN, **fields)
