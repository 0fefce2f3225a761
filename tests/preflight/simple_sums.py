"""Sums simple enough to be done in the head, put in the place of the estimators by `use_simple_sums`.

One rank needs 4 GiB of states a billion parameters (whatever the precision), and 1 GiB of activations for each
sequence of its micro-batch (half of it in bf16 and fp16) times the layers / 12; the high edge is 10 % above.
A step takes 16 s in fp32, 8 s in tf32, 4 s in bf16 and fp16 at 12 layers, the high edge is 25 % above.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from preflight.band import Band, around
from preflight.cost import CostEstimate, Rates
from preflight.duration import WallEstimate
from preflight.estimate import Estimate
from preflight.lowering import ladder, lower, raising, rungs, search
from preflight.memory.peak import MemoryEstimate
from preflight.plan import ModelPlan, Precision, RunPlan
from preflight.step_time.step import StepTimeEstimate
from preflight.units import GIB, SECONDS_PER_HOUR
from preflight.value import ValueEstimate
from preflight.verdict import fitting, judge, remedies
from preflight.worth import Worth

STEP_SECONDS = {Precision.fp32: 16.0, Precision.tf32: 8.0, Precision.bf16: 4.0, Precision.fp16: 4.0}
N_PARAMS_PER_LAYER = 10_000_000


def simple_memory(plan: RunPlan) -> MemoryEstimate:
    """Linear in the micro-batch."""
    n_params = plan.model.n_layer * N_PARAMS_PER_LAYER
    per_sequence = GIB if plan.trainer.precision in (Precision.fp32, Precision.tf32) else GIB // 2
    activations = plan.trainer.micro_batch_size * per_sequence * plan.model.n_layer // 12
    total = 4 * n_params + activations
    card = plan.hw.card.memory_bytes
    return MemoryEstimate(
        allocated=around(total, 0.9, 1.1, "formula"),
        reserved=around(total, 0.9, 1.1, "formula"),
        device=around(total, 0.9, 1.1, "formula"),
        terms_bytes={"states": 4 * n_params, "activations": activations},
        phases_bytes={"backward": total},
        phase="backward",
        card_bytes=card,
        usable_bytes=None if card is None else int(card * plan.budget.max_memory_fraction),
        checkpoint_bytes=12 * n_params,
        host_memory_bytes=GIB,
    )


def simple_step(plan: RunPlan) -> StepTimeEstimate:
    """Whatever the batch."""
    known = bool(plan.hw.card.peak_flops_per_second)
    seconds = STEP_SECONDS[plan.trainer.precision] * plan.model.n_layer / 12 / plan.hw.world_size
    tokens = plan.trainer.tokens_per_step / seconds
    return StepTimeEstimate(
        seconds=around(seconds, 0.8, 1.25, "formula") if known else None,
        terms_seconds={"compute": seconds} if known else {},
        flops_per_step=1e12,
        peak_flops_per_second=1e13 if known else None,
        tokens_per_second=around(tokens, 0.8, 1.25, "formula") if known else None,
        mfu=0.4 if known else None,
        raw_seconds=seconds if known else None,
    )


def simple_estimate(plan: RunPlan) -> Estimate:
    """Steps only; a dollar price an hour, 0.5 kW."""
    memory, step = simple_memory(plan), simple_step(plan)
    n_params = plan.model.n_layer * N_PARAMS_PER_LAYER
    wall = step.seconds.scaled(plan.trainer.n_steps) if step.seconds else None
    hours: Band | None = wall.scaled(1 / SECONDS_PER_HOUR) if wall else None
    price, watts = plan.hw.offer.usd_per_hour, plan.hw.watts or 500.0
    return Estimate(
        n_params=n_params,
        memory=memory,
        step=step,
        wall=WallEstimate(seconds=wall, terms_seconds={"steps": wall.mid} if wall else {}),
        cost=CostEstimate(
            cost_usd=hours.scaled(price) if hours and price is not None else None,
            energy_kwh=hours.scaled(watts / 1000) if hours else None,
            co2_kg=hours.scaled(watts / 1000 * 0.475) if hours else None,
            rates=Rates(usd_per_hour=price, watts=watts, basis="price unknown" if price is None else f"${price}/h"),
            alternative="",
            alternative_usd=None,
        ),
        value=ValueEstimate(
            tokens_per_param=plan.trainer.total_tokens / n_params,
            n_epochs=0.5,
            expected_loss=Band(low=3.0, mid=3.1, high=3.3, source="Hoffmann et al. 2022"),
            expected_loss_at_three_quarters=3.15,
            compute_optimal_tokens=20 * n_params,
        ),
        worth=Worth(
            last_quarter_usd=None,
            last_quarter_loss=None,
            budget_tokens=None,
            optimal_params=None,
            optimal_tokens=None,
        ),
        disk_bytes=36 * n_params,
    )


def simple_states(plan: RunPlan) -> int:
    """Weights, gradients and Adam in fp32."""
    return 16 * plan.model.n_layer * N_PARAMS_PER_LAYER


def use_simple_sums(monkeypatch: Any) -> None:
    """Every module that asks for an estimate gets these."""
    monkeypatch.setattr(fitting, "estimate_memory", simple_memory)
    monkeypatch.setattr(fitting, "estimate", simple_estimate)
    monkeypatch.setattr(remedies, "estimate_memory", simple_memory)
    monkeypatch.setattr(remedies, "estimate", simple_estimate)
    monkeypatch.setattr(judge, "work_out", simple_estimate)
    monkeypatch.setattr(rungs, "estimate_memory", simple_memory)
    monkeypatch.setattr(rungs, "estimate_step_time", simple_step)
    monkeypatch.setattr(lower, "estimate_memory", simple_memory)
    monkeypatch.setattr(lower, "estimate", simple_estimate)
    monkeypatch.setattr(remedies, "state_bytes", simple_states)
    monkeypatch.setattr(rungs, "state_bytes", simple_states)
    monkeypatch.setattr(ladder, "estimate", simple_estimate)
    monkeypatch.setattr(search, "estimate", simple_estimate)
    monkeypatch.setattr(raising, "estimate", simple_estimate)
    monkeypatch.setattr(raising, "estimate_step_time", simple_step)


def with_layers(model: ModelPlan, n_layer: int) -> ModelPlan:
    """A smaller sister."""
    return replace(model, name=f"{model.name}_{n_layer}l", n_layer=n_layer)
