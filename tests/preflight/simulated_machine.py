"""Plans for simulated machines (`scripts.simulated_machine`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from preflight.plan import ModelPlan, RunPlan
from scripts.simulated_machine import SimulatedMachine

__all__ = ["SimulatedMachine", "cpu_plan"]
MakePlan = Callable[..., RunPlan]


def cpu_plan(make_plan: MakePlan, n_embd: int = 256, n_layer: int = 4, micro_batch_size: int = 8) -> RunPlan:
    shape: ModelPlan = replace(
        make_plan(model="tiny").model, n_embd=n_embd, d_ff=4 * n_embd, n_layer=n_layer, n_head=4, n_kv_head=4
    )
    return make_plan(model=shape, card="cpu", micro_batch_size=micro_batch_size, sequence_length=256, n_steps=200)
