"""Config + machine + catalog -> plan: every default and every `auto` is decided here, once, all problems told."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import NamedTuple

from conf.choices import Enforce, PolicyChoice
from conf.schema import Config, HwConfig
from preflight.errors import ConfigError
from preflight.hw_plan import CardKind, HwPlan
from preflight.machine.snapshot import Machine
from preflight.plan import (
    BudgetPlan,
    DataPlan,
    LauncherPlan,
    LoweringPlan,
    ModelPlan,
    RunPlan,
    Software,
    TrackingPlan,
    TrainerPlan,
)
from preflight.providers import money
from preflight.resolve.batch import divide_batch
from preflight.resolve.combinations import check_model, check_trainer, note_exact_products, note_idle
from preflight.resolve.compare_options import check_compare
from preflight.resolve.data import resolve_data
from preflight.resolve.deadline import Deadline, resolve_deadline
from preflight.resolve.hw import Hardware, check_world, complete_hardware, find_hardware
from preflight.resolve.presets import changed_shape, model_plan, smaller_models, unread_presets
from preflight.resolve.ranges import check_ranges
from preflight.resolve.resolution import Resolution
from preflight.resolve.texts import check_texts
from preflight.resolve.trainer import Needs, resolve_precision, resolve_trainer
from preflight.units import GIB

VERSION = "0.1.0"  # as in pyproject.toml; reading package metadata takes longer than the rest of this module


class Job(NamedTuple):
    """What is the same on every machine."""

    config: Config  # every number in its range
    model: ModelPlan
    data: DataPlan | None  # None: there is no such data
    command: str
    created_at: str
    deadline: Deadline


def resolve(config: Config, machine: Machine, *, command: str, created_at: str) -> RunPlan:
    """ConfigError carries all problems; WrongMachine: torchrun contradicts `hw`. Calibration is left to the caller."""
    resolution = Resolution()
    job = resolve_job(config, resolution, command=command, created_at=created_at)
    hardware = find_hardware(job.config.hw, machine, resolution)
    if job.model.path is not None and hardware is not None and hardware.card.kind in (CardKind.cpu, CardKind.mps):
        from preflight.resolve.hf import for_processor

        job = job._replace(config=for_processor(job.config, resolution))
    plan = plan_on(job, hardware, job.config.hw, machine, resolution) if hardware is not None else None
    if plan is None or resolution.problems:
        raise ConfigError(resolution.problems)
    return plan


def resolve_job(config: Config, resolution: Resolution, *, command: str, created_at: str) -> Job:
    """Ranges, names, model and data; the problems are noted."""
    if config.model.path is not None or config.model.n_layer == 0:  # presets do not pay for it
        from preflight.resolve.hf import from_folder

        config = replace(config, model=from_folder(config.model, resolution, config.trainer.sequence_length))
    config = check_texts(check_ranges(config, resolution), resolution)
    if config.trainer.init_from is not None:  # most runs do not pay for it
        from preflight.resolve.start import with_latest

        config = with_latest(config, resolution)
    check_compare(config, resolution)
    model = _resolve_model(config, resolution)
    sequence_length = config.trainer.sequence_length or config.model.recipe.sequence_length
    data = resolve_data(config.data, config.model, sequence_length, resolution)
    deadline = resolve_deadline(config.budget.deadline, created_at, resolution)
    return Job(config=config, model=model, data=data, command=command, created_at=created_at, deadline=deadline)


def plan_on(job: Job, hardware: Hardware, hw: HwConfig, machine: Machine, resolution: Resolution) -> RunPlan | None:
    """The job on one machine; None: something is missing, and the problems are noted."""
    parts = _resolve_parts(job, hardware, hw, machine, resolution)
    if parts is None:
        return None
    config = job.config
    return RunPlan(
        name=config.name if config.name is not None else config.model.name,
        created_at=job.created_at,
        command=job.command,
        seed=config.seed,
        model=job.model,
        data=parts.data,
        hw=parts.hw,
        trainer=parts.trainer,
        budget=_budget_plan(config, job.deadline),
        lowering=LoweringPlan(
            policy=config.lowering.policy,
            keep=tuple(config.lowering.keep),
            allow_model=config.lowering.allow_model,
            smaller_models=_smaller_models(job.model, parts.trainer),
            rungs=tuple(config.lowering.rungs),
            raise_batch=config.lowering.raise_batch,
            on_oom=config.lowering.on_oom,
            show=config.lowering.show,
        ),
        launcher=LauncherPlan(
            grace_seconds=config.launcher.grace_seconds,
            time_limit_hours=config.launcher.time_limit_hours,
        ),
        tracking=_resolve_tracking(config),
        software=Software(python=machine.python, torch=machine.torch, preflight=VERSION),
        runs_dir=os.path.abspath(os.path.expanduser(config.runs_dir)),
        provenance=resolution.provenance,
    )


def _smaller_models(model: ModelPlan, trainer: TrainerPlan) -> tuple[ModelPlan, ...]:
    """Weights to start from fit one model alone."""
    return smaller_models(model, trainer.sequence_length) if trainer.init_from is None else ()


class _Parts(NamedTuple):
    """What depends on each other."""

    data: DataPlan
    hw: HwPlan
    trainer: TrainerPlan


def _resolve_parts(
    job: Job, hardware: Hardware, hw_config: HwConfig, machine: Machine, resolution: Resolution
) -> _Parts | None:
    """Every part is looked at, whatever the others lack."""
    config, data = job.config, job.data
    batch = divide_batch(config, hardware, resolution)
    n_gpus = batch.n_gpus_per_node if batch is not None else hardware.n_gpus_per_node
    hw = complete_hardware(hardware, n_gpus, hw_config, machine, resolution, job.created_at[:10])
    if not resolution.problems:
        check_world(hardware, hw_config, machine)
    precision = resolve_precision(config.trainer.precision, hardware.card, resolution)
    if batch is None or precision is None:
        return None
    n_val_tokens = data.n_val_tokens if data is not None else None
    needs = Needs(
        card_kind=hardware.card.kind,
        precision=precision,
        batch=batch,
        world_size=hardware.n_nodes * n_gpus,
        n_val_tokens=n_val_tokens,
    )
    trainer = resolve_trainer(config, needs, resolution)
    if trainer is not None:
        check_trainer(job.model, trainer, hardware.card.kind, resolution)
        if trainer.init_from is not None:
            from preflight.resolve.start import check_start

            check_start(job.model, trainer, resolution)
        note_exact_products(trainer, hardware.card, resolution)
        note_idle(config, hardware.n_nodes, needs.world_size, resolution)
    if data is None or hw is None or trainer is None:
        return None
    return _Parts(data=data, hw=hw, trainer=trainer)


def _resolve_model(config: Config, resolution: Resolution) -> ModelPlan:
    """The shape, with what its numbers owe each other."""
    model = model_plan(config.model)
    check_model(config, model, resolution)
    changes = changed_shape(model)
    if changes and model.path is None:
        resolution.provenance["model"] = f"given: {', '.join(changes)}"
    if left_out := unread_presets():
        resolution.provenance["lowering.allow_model"] = (
            f"default: no smaller model is taken from conf/model/{', '.join(left_out)}"
        )
    if config.model.d_ff is None:
        resolution.provenance["model.d_ff"] = "default"
    return model


def resolve_budget(config: Config, created_at: str, resolution: Resolution) -> BudgetPlan:
    """The budget alone, for a run that goes on within another one; the problems are noted."""
    config = check_ranges(config, resolution)
    return _budget_plan(config, resolve_deadline(config.budget.deadline, created_at, resolution))


def _budget_plan(config: Config, deadline: Deadline) -> BudgetPlan:
    budget = config.budget
    knowingly_over = config.lowering.policy is PolicyChoice.off
    return BudgetPlan(
        max_hours=budget.max_hours,
        max_cost_usd=budget.max_cost_usd,
        max_energy_kwh=budget.max_energy_kwh,
        max_memory_fraction=budget.max_memory_fraction,
        judge_on=budget.judge_on,
        enforce=budget.enforce or (Enforce.warn if knowingly_over else Enforce.stop),
        deadline=deadline.text,
        deadline_unix_seconds=deadline.unix_seconds,
        deadline_hours=deadline.hours,
        max_disk_bytes=None if budget.max_disk_gib is None else budget.max_disk_gib * GIB,
        max_host_memory_bytes=None if budget.max_host_memory_gib is None else budget.max_host_memory_gib * GIB,
        money=money(budget.currency),
    )


def _resolve_tracking(config: Config) -> TrackingPlan:
    tracking = config.tracking
    return TrackingPlan(
        backend=tracking.backend,
        mode=tracking.mode,
        project=tracking.project,
        entity=tracking.entity,
        notes=tracking.notes,
        tags=tuple(tracking.tags),
        group=tracking.group,
        artifacts=tracking.artifacts,
    )
