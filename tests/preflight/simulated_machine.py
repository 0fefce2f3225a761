"""A machine whose truth is known, and what the ledger would say of its runs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from preflight.memory.peak import estimate_memory
from preflight.plan import NO_CALIBRATION, Calibration, Factor, ModelPlan, RunPlan
from preflight.planfile import to_jsonable
from preflight.step_time.step import estimate_step_time
from preflight.units import MIB

MakePlan = Callable[..., RunPlan]


def exactly(value: float) -> Factor:
    return Factor(value=value, low=value, high=value, n_runs=1, scope="truth")


@dataclass(kw_only=True)
class SimulatedMachine:
    """Steps take `pace` x the formula, times what is peculiar to a plan, times noise; peaks have their own truth."""

    seed: int = 0
    pace: float = 2.0
    plan_sigma: float = 0.0
    run_sigma: float = 0.0
    base_bytes: float = 400 * MIB
    tokens_factor: float = 1.25
    startup_seconds: float = 9.0
    peculiar: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def step_seconds(self, plan: RunPlan) -> float:
        """Without noise."""
        key = str((plan.model, plan.trainer.micro_batch_size, plan.trainer.grad_accum_steps))
        peculiar = self.peculiar.setdefault(key, math.exp(self.random.gauss(0, self.plan_sigma)))
        raw = estimate_step_time(replace(plan, calibration=NO_CALIBRATION)).raw_seconds
        assert raw is not None
        return raw * self.pace * peculiar

    def peak_bytes(self, plan: RunPlan) -> float:
        """Resident, or reserved on a card."""
        truth = {"activation_bytes": exactly(self.tokens_factor), "base_memory_bytes": exactly(self.base_bytes)}
        memory = estimate_memory(replace(plan, calibration=Calibration(n_runs=1, factors=truth, ledger_sha256=None)))
        return memory.device.mid if plan.hw.card.name == "cpu" else memory.reserved.mid

    def run(
        self, plan: RunPlan, *, disturbed: float = 1.0, n_steps_done: int | None = None, first_step: int = 0
    ) -> dict[str, Any]:
        """A line of the ledger."""
        n_steps = plan.trainer.n_steps if n_steps_done is None else n_steps_done
        step = self.step_seconds(plan) * disturbed * math.exp(self.random.gauss(0, self.run_sigma))
        peak = self.peak_bytes(plan) * math.exp(self.random.gauss(0, self.run_sigma / 4))
        actual = {
            "step_seconds": step,
            "peak_device_bytes": int(peak),
            "peak_reserved_bytes": None,
            "base_memory_bytes": None,
            "first_step": first_step,
            "n_steps_done": n_steps,
            "wall_startup_seconds": self.startup_seconds,
            "wall_steps_seconds": step * (n_steps - first_step),
        }
        return {"plan": to_jsonable(plan), "actual": {f"actual/{name}": value for name, value in actual.items()}}


def cpu_plan(make_plan: MakePlan, n_embd: int = 256, n_layer: int = 4, micro_batch_size: int = 8) -> RunPlan:
    shape: ModelPlan = replace(
        make_plan(model="tiny").model, n_embd=n_embd, d_ff=4 * n_embd, n_layer=n_layer, n_head=4, n_kv_head=4
    )
    return make_plan(model=shape, card="cpu", micro_batch_size=micro_batch_size, sequence_length=256, n_steps=200)
