"""A machine whose truth is known, and what the ledger would say of its runs. For tests and `bench_learning`."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from typing import Any

from preflight.duration import checkpoint_seconds, compile_seconds, evaluation_seconds
from preflight.hw_plan import CardKind
from preflight.memory.peak import estimate_memory
from preflight.plan import NO_CALIBRATION, Calibration, Factor, RunPlan
from preflight.planfile import to_jsonable
from preflight.step_time.step import estimate_step_time
from preflight.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What the formulas say of a plan on this machine, worked out once."""

    document: dict[str, Any]
    step_seconds: float
    peak_bytes: float  # with the machine's truth
    evaluations_steps: float  # all evaluations in units of a step
    checkpoints_seconds: float
    compile_seconds: float


@dataclass(kw_only=True)
class SimulatedMachine:
    """Steps take `pace` x the formula, times what is peculiar to a plan, times noise; peaks have their own truth."""

    seed: int = 0
    pace: float = 2.0
    plan_sigma: float = 0.0  # between plans
    run_sigma: float = 0.0  # between runs of one plan
    memory_sigma: float = 0.0  # of peaks, between plans
    terms_sigma: float = 0.0  # of start-up and the like, between runs
    drift_sigma: float = 0.0  # the pace's change from run to run
    base_bytes: float = 400 * MIB
    tokens_factor: float = 1.25
    startup_seconds: float = 9.0
    evaluation_factor: float = 1.0
    checkpoint_factor: float = 1.0
    peculiar: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._sums: dict[str, Sums] = {}

    def step_seconds(self, plan: RunPlan) -> float:
        """Without noise."""
        return self._of(plan).step_seconds * self.pace * self._peculiar(plan, self.plan_sigma)

    def peak_bytes(self, plan: RunPlan) -> float:
        """Resident, or reserved on a card."""
        return self._of(plan).peak_bytes * self._peculiar(plan, self.memory_sigma, "memory")

    def run(
        self, plan: RunPlan, *, disturbed: float = 1.0, n_steps_done: int | None = None, first_step: int = 0
    ) -> dict[str, Any]:
        """A line of the ledger, as far as calibration reads it."""
        sums = self._of(plan)
        n_steps = (plan.trainer.n_steps if n_steps_done is None else n_steps_done) - first_step
        step = self.step_seconds(plan) * disturbed * self._noise(self.run_sigma)
        peak = int(self.peak_bytes(plan) * self._noise(self.run_sigma / 4))
        terms = {
            "startup": self.startup_seconds * self._noise(self.terms_sigma),
            "compile": sums.compile_seconds * self._noise(self.terms_sigma),
            "steps": step * n_steps * 1.02,
            "evaluations": step * sums.evaluations_steps * self.evaluation_factor * self._noise(self.run_sigma),
            "checkpoints": sums.checkpoints_seconds * self.checkpoint_factor * self._noise(self.terms_sigma),
            "shutdown": 0.5 * self._noise(self.terms_sigma),
        }
        self.pace *= self._noise(self.drift_sigma)
        is_cpu = plan.hw.card.kind is CardKind.cpu
        actual = {
            "step_seconds": step,
            "peak_device_bytes": peak if is_cpu else peak + 500 * MIB,
            "peak_reserved_bytes": None if is_cpu else peak,
            "base_memory_bytes": None,
            "first_step": first_step,
            "n_steps_done": n_steps + first_step,
            "wall_seconds": sum(terms.values()),
            **{f"wall_{name}_seconds": seconds for name, seconds in terms.items()},
        }
        return {"plan": sums.document, "actual": {f"actual/{name}": value for name, value in actual.items()}}

    def _noise(self, sigma: float) -> float:
        return math.exp(self.random.gauss(0, sigma)) if sigma else 1.0

    def _peculiar(self, plan: RunPlan, sigma: float, what: str = "step") -> float:
        key = str((what, plan.model, plan.trainer.micro_batch_size, plan.trainer.grad_accum_steps))
        if key not in self.peculiar:
            self.peculiar[key] = self._noise(sigma)
        return self.peculiar[key]

    def _of(self, plan: RunPlan) -> Sums:
        key = str(plan)
        if key not in self._sums:
            self._sums[key] = self._work_out(plan)
        return self._sums[key]

    def _work_out(self, plan: RunPlan) -> Sums:
        bare = replace(plan, calibration=NO_CALIBRATION)
        truth = {"activation_bytes": exactly(self.tokens_factor), "base_memory_bytes": exactly(self.base_bytes)}
        memory = estimate_memory(replace(plan, calibration=Calibration(n_runs=1, factors=truth, ledger_sha256=None)))
        step = estimate_step_time(bare)
        assert step.raw_seconds is not None
        return Sums(
            document=to_jsonable(plan),
            step_seconds=step.raw_seconds,
            peak_bytes=memory.device.mid if plan.hw.card.kind is CardKind.cpu else memory.reserved.mid,
            evaluations_steps=evaluation_seconds(bare, step) / step.raw_seconds,
            compile_seconds=compile_seconds(bare),
            checkpoints_seconds=checkpoint_seconds(bare, estimate_memory(bare).checkpoint_bytes, step.raw_seconds),
        )


def exactly(value: float) -> Factor:
    """A factor without doubt."""
    return Factor(value=value, low=value, high=value, n_runs=1, scope="truth")
