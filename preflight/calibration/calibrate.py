"""Factors from what earlier runs on the same card or machine measured: a pure function of the ledger's records.

A record counts when card (a CPU: this very processor and number of cores), torch version, precision, compile and model
family are those of the plan; it never crosses cards. Each measured number is divided by what the formula *as it stands
now* says about the recorded plan, so that a better formula does not inherit the corrections of a worse one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from math import log
from typing import Any

from conf.choices import TrackingBackend
from preflight.actual import is_whole
from preflight.calibration.evidence import Observation, Spread, factor_from, sound_numbers
from preflight.calibration.likeness import key_of, likeness
from preflight.calibration.memory_fit import memory_factors
from preflight.duration import (
    checkpoint_seconds,
    compile_seconds,
    evaluation_seconds,
    shutdown_seconds,
    startup_seconds,
)
from preflight.hw_plan import CardKind
from preflight.memory.peak import estimate_memory
from preflight.plan import NO_CALIBRATION, Calibration, Factor, ModelPlan, RunPlan, TrainerPlan
from preflight.planfile import from_jsonable, to_jsonable
from preflight.rates import watts_of
from preflight.step_time.step import StepTimeEstimate, estimate_step_time
from preflight.units import JOULES_PER_KWH

MAX_RECORDS = 50  # the newest that match; older ones would count for little and cost time in every bill
MIN_STEPS = 10  # of a run that did not finish: enough to have left the warm-up behind
STEP_NOISE = 0.3  # of a single step's time, standard deviation of its logarithm
LARGEST_BYTES = 1e14  # of one rank; a plan that needs more was edited by hand, or damaged
CLOCK_SECONDS = 0.1  # what start-up and the like vary by on their own
# `noise`: after one run of a plan, p10 and p90 of the next are 0.83 and 1.28 of it on a processor, whose cores and
# memory others share, and 0.93 and 1.10 on a card.
STEP_SPREAD = Spread(machine=0.7, plan=0.2, run=0.04, noise=0.08)
STEP_SPREAD_ON_CARDS = Spread(machine=0.7, plan=0.15, run=0.02, noise=0.03)
SPREADS = {
    "evaluation_seconds": Spread(machine=0.4, plan=0.2, run=0.08, noise=0.1),
    "checkpoint_seconds": Spread(machine=0.6, plan=0.3, run=0.25, noise=0.25),
    "startup_seconds": Spread(machine=0.5, plan=0.1, run=0.2, noise=0.2),
    "compile_seconds": Spread(machine=0.5, plan=0.3, run=0.3, noise=0.3),
    "shutdown_seconds": Spread(machine=2.0, plan=0.1, run=0.3, noise=0.3),
    "watts": Spread(machine=0.2, plan=0.1, run=0.03, noise=0.03, skew=0.0),
}
WALL_LEAVES = {
    "evaluation_seconds": "wall_evaluations_seconds",
    "checkpoint_seconds": "wall_checkpoints_seconds",
    "startup_seconds": "wall_startup_seconds",
    "compile_seconds": "wall_compile_seconds",
    "shutdown_seconds": "wall_shutdown_seconds",
}
EXACTLY_TIMED = ("watts", "shutdown_seconds")  # without a process to start or kernels to load
ABSOLUTES = ("startup_seconds", "compile_seconds", "shutdown_seconds", "watts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One matching record: its plan on the card of the plan in question, and what it measured."""

    plan: RunPlan
    key: str
    likeness: float
    actual: Mapping[str, float | None]  # leaves without `actual/`
    first_step: int  # done by earlier segments, not measured here
    n_steps_done: int

    @property
    def n_steps_measured(self) -> int:
        """Of this segment."""
        return self.n_steps_done - self.first_step


def calibrate(plan: RunPlan, records: Sequence[dict[str, Any]], ledger_sha256: str | None) -> Calibration:
    """Matches card or machine, torch version, precision, compile, family; never crosses cards."""
    wanted = _signature(to_jsonable(plan))
    matching = [record for record in records if _matches(record, wanted)][-MAX_RECORDS:]
    runs = _runs(replace(plan, calibration=NO_CALIBRATION), matching)
    if not runs:
        return replace(NO_CALIBRATION, ledger_sha256=ledger_sha256)
    elsewhere = "same machine" if plan.hw.card.kind is CardKind.cpu else "same card"
    bare = replace(plan, calibration=NO_CALIBRATION)
    factors = {"step_seconds": _step_factor(runs, elsewhere)}
    factors |= memory_factors(bare, [(run.plan, run.key, run.likeness, run.actual) for run in runs], elsewhere)
    factors |= {key: _ratio_factor(key, bare, runs, elsewhere) for key in SPREADS}
    found = {key: factor for key, factor in factors.items() if factor is not None}
    return Calibration(n_runs=len(runs), factors=found, ledger_sha256=ledger_sha256)


def _signature(plan: Mapping[str, Any]) -> tuple[Any, ...]:
    """What must be equal. Builds of one torch release (+cpu, +cu130) count as one: the card tells them apart."""
    card, hw, trainer = plan["hw"]["card"], plan["hw"], plan["trainer"]
    machine = (card["label"], hw["n_cpu_cores"]) if card["kind"] == CardKind.cpu.name else (card["name"],)
    torch = (plan["software"]["torch"] or "").partition("+")[0]
    return (*machine, torch, trainer["precision"], trainer["compile"], plan["model"]["family"])


def _matches(record: Mapping[str, Any], wanted: tuple[Any, ...]) -> bool:
    """A measured run of the same kind; records of another shape (an older program's) do not match."""
    try:
        if not record["actual"] or _signature(record["plan"]) != wanted:
            return False
        _world(record["plan"])
        actual = sound_numbers(record["actual"])
        n_steps_measured = int(actual["n_steps_done"]) - int(actual.get("first_step", 0))
        return n_steps_measured >= max(1, min(MIN_STEPS, int(record["plan"]["trainer"]["n_steps"])))
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def _runs(plan: RunPlan, records: Sequence[Mapping[str, Any]]) -> list[Run]:
    """Plans are compared without their lengths and intervals; equal ones are worked out once."""
    mine = key_of(plan)
    known: dict[str, tuple[RunPlan, str, float] | None] = {}
    runs = []
    for record in records:
        identity = json.dumps([record["plan"]["model"], record["plan"]["trainer"], _world(record["plan"])])
        if identity not in known:
            known[identity] = _understood(record["plan"], plan, mine)
        found = known[identity]
        if found is None:
            continue
        actual = sound_numbers(record["actual"])
        runs.append(
            Run(
                plan=found[0],
                key=found[1],
                likeness=found[2],
                actual=actual,
                first_step=int(actual.get("first_step", 0)),
                n_steps_done=int(actual["n_steps_done"]),
            )
        )
    return runs


def _understood(stored: Mapping[str, Any], plan: RunPlan, mine: str) -> tuple[RunPlan, str, float] | None:
    """Plan, key and likeness; None for a plan that the sums cannot take (no head divides its width, say)."""
    try:
        theirs = _plan_of(stored, plan)
        key = key_of(theirs)
        estimate_step_time(theirs)
        if estimate_memory(theirs).device.mid > LARGEST_BYTES:
            return None
        return theirs, key, 1.0 if key == mine else likeness(theirs, plan)
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return None


def _world(plan: Mapping[str, Any]) -> tuple[int, int, str]:
    return plan["hw"]["n_nodes"], plan["hw"]["n_gpus_per_node"], plan["tracking"]["backend"]


def _plan_of(stored: Mapping[str, Any], plan: RunPlan) -> RunPlan:
    """The recorded plan on the card as it is known today; fields that it did not have yet are at their defaults."""
    n_nodes, n_gpus_per_node, tracking = _world(stored)
    return replace(
        plan,
        model=from_jsonable(ModelPlan, stored["model"]),
        trainer=from_jsonable(TrainerPlan, _required(plan.trainer) | stored["trainer"]),
        hw=replace(plan.hw, n_nodes=n_nodes, n_gpus_per_node=n_gpus_per_node),
        tracking=replace(plan.tracking, backend=TrackingBackend[tracking]),
    )


def _required(trainer: TrainerPlan) -> dict[str, Any]:
    """The fields without a default, for records that lack one."""
    stored = to_jsonable(trainer)
    return {field.name: stored[field.name] for field in fields(TrainerPlan) if field.default is MISSING}


def _step_factor(runs: Sequence[Run], elsewhere: str) -> Factor | None:
    observations = []
    for run in runs:
        formula = estimate_step_time(run.plan).raw_seconds
        measured = run.actual.get("step_seconds")
        if formula and measured and measured / formula > 0:
            observations.append(_observation(run, measured / formula, STEP_NOISE**2 / run.n_steps_measured))
    is_card = runs[0].plan.hw.card.kind in (CardKind.cuda, CardKind.rocm)
    return factor_from(observations, STEP_SPREAD_ON_CARDS if is_card else STEP_SPREAD, elsewhere)


def _observation(run: Run, ratio: float, variance: float) -> Observation:
    return Observation(group=run.key, likeness=run.likeness, log_ratio=log(ratio), variance=variance)


def _ratio_factor(key: str, plan: RunPlan, runs: Sequence[Run], elsewhere: str) -> Factor | None:
    """A wall-time term or the power: measured / formula; ABSOLUTES are multiplied out."""
    observations = []
    for run in runs:
        if key == "shutdown_seconds" and run.plan.tracking.backend is not plan.tracking.backend:
            continue  # one is a closed connection, the other nothing
        measured, formula = _measured(key, run), _formula(key, run.plan, run.actual.get("step_seconds"))
        if measured and formula and measured / formula > 0:  # below: an interval that only a hand can have written
            clock = (CLOCK_SECONDS / measured) ** 2 if key not in EXACTLY_TIMED else 0.0
            observations.append(_observation(run, measured / formula, clock))
    factor = factor_from(observations, SPREADS[key], elsewhere)
    if factor is None or key not in ABSOLUTES:
        return factor
    now = _formula(key, plan, None)
    return None if not now else replace(factor, value=factor.value * now, low=factor.low * now, high=factor.high * now)


def _measured(key: str, run: Run) -> float | None:
    """None where the record does not say, or says it of a part of the run only."""
    if key == "watts":
        return _measured_watts(run)
    is_told = {
        "startup_seconds": run.first_step == 0,  # a resumed run reads a checkpoint as well
        "shutdown_seconds": True,
        "compile_seconds": _is_whole(run) or not run.plan.trainer.compile,  # a part may have compiled no evaluation
    }
    return run.actual.get(WALL_LEAVES[key]) if is_told.get(key, _is_whole(run)) else None


def _is_whole(run: Run) -> bool:
    """Older records do not say whether they are of a resumed part."""
    return "first_step" in run.actual and is_whole(run.first_step, run.n_steps_done, run.plan.trainer.n_steps)


def _measured_watts(run: Run) -> float | None:
    """Of one node before the building's share; only where cards counted joules (otherwise watts were assumed)."""
    energy, wall = run.actual.get("energy_kwh"), run.actual.get("wall_seconds")
    if not energy or not wall or not run.actual.get("energy_is_measured"):
        return None
    return energy * JOULES_PER_KWH / wall / run.plan.hw.electricity.pue / run.plan.hw.n_nodes


def _formula(key: str, plan: RunPlan, step_seconds: float | None) -> float | None:
    """What the bill says without calibration, but with the step time that was measured."""
    if key == "startup_seconds":
        return startup_seconds(plan)
    if key == "compile_seconds":
        return compile_seconds(plan)
    if key == "shutdown_seconds":
        return shutdown_seconds(plan)
    if key == "checkpoint_seconds":
        n_bytes = estimate_memory(plan).checkpoint_bytes
        return checkpoint_seconds(plan, n_bytes, step_seconds) if step_seconds else None
    if key == "watts":
        watts, _ = watts_of(plan.hw)
        return None if watts is None else watts / plan.hw.electricity.pue / plan.hw.n_nodes
    step = estimate_step_time(plan)
    return evaluation_seconds(plan, _at(step, step_seconds)) if step.seconds and step_seconds else None


def _at(step: StepTimeEstimate, seconds: float) -> StepTimeEstimate:
    """The same terms at another pace."""
    total = sum(step.terms_seconds.values())
    return replace(step, terms_seconds={name: term * seconds / total for name, term in step.terms_seconds.items()})
