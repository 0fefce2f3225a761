"""What a lowering changed, in words: old -> new, why, what it saves and what not, and how to protect the old value."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from preflight.estimate import Estimate
from preflight.lowering.levels import (
    CHECKPOINTING,
    EVERY_RUNG,
    FIELDS,
    LOSS_CHUNK,
    OPTIMIZER,
    PRECISION,
    SHARDING,
    value_of,
    with_asked,
)
from preflight.memory.peak import estimate_memory
from preflight.plan import Precision, RunPlan
from preflight.step_time.step import estimate_step_time
from preflight.units import format_bytes, format_count, format_seconds
from preflight.verdict.fitting import state_bytes
from preflight.verdict.judge import Change
from preflight.verdict.needs import BUDGET_WORDS

# What stays and what does not, of the rungs that people switch on.
OPTIONAL_EFFECTS = {
    LOSS_CHUNK: "the same sums, fewer logits at a time",
    CHECKPOINTING: "the same sums, made again in the backward pass",
    SHARDING: "the same sums, the ranks exchange what they share",
    OPTIMIZER: "Adam's moments in 8 bits: nearly the same steps",
}


def changes_between(
    asked: RunPlan, asked_estimate: Estimate, new: RunPlan, new_estimate: Estimate, broken: Collection[str]
) -> tuple[Change, ...]:
    """Model, precision, the optional rungs, batch: the gravest first."""
    budgets = " and ".join(word for budget, word in BUDGET_WORDS.items() if budget in broken)
    optional = (rung for rung in reversed(EVERY_RUNG) if rung in OPTIONAL_EFFECTS)
    return (
        *_model_change(asked, asked_estimate, new, new_estimate, budgets),
        *_precision_change(asked, new, new_estimate, budgets),
        *(change for rung in optional for change in _optional_change(rung, asked, new, new_estimate, budgets)),
        *_batch_change(asked, asked_estimate, new, new_estimate),
    )


def _optional_change(rung: str, asked: RunPlan, new: RunPlan, new_estimate: Estimate, budgets: str) -> Iterator[Change]:
    """What one field alone saves and costs: the plan that runs against the same with the old value."""
    old, value = value_of(asked, rung), value_of(new, rung)
    if old == value:
        return
    before = with_asked(new, asked, rung)
    saved = estimate_memory(before).device.mid - new_estimate.memory.device.mid
    effects = [f"{format_bytes(saved)} less a rank"] if saved > 0 else []
    old_step, new_step = estimate_step_time(before).seconds, new_estimate.step.seconds
    if old_step is not None and new_step is not None:
        effects.append(_step_takes(new_step.mid, old_step.mid))
    reason = f"over {budgets}: {', '.join([*effects, OPTIONAL_EFFECTS[rung]])}"
    pin = f"lowering.keep=[{rung}]"
    yield Change(rung=rung, field=FIELDS[rung], old=old, new=value, reason=reason, pin=pin)


def _model_change(
    asked: RunPlan, asked_estimate: Estimate, new: RunPlan, new_estimate: Estimate, budgets: str
) -> Iterator[Change]:
    if asked.model == new.model:
        return
    reason = (
        f"over {budgets}: {format_count(asked_estimate.n_params)} -> {format_count(new_estimate.n_params)} parameters, "
        f"the same {format_count(new.trainer.total_tokens)} tokens; the result is another model"
    )
    yield Change(
        rung="model",
        field="model",
        old=asked.model.name,
        new=new.model.name,
        reason=reason,
        pin="lowering.allow_model=false",
    )


def _precision_change(asked: RunPlan, new: RunPlan, new_estimate: Estimate, budgets: str) -> Iterator[Change]:
    old, precision = asked.trainer.precision, new.trainer.precision
    if old is precision:
        return
    before = with_asked(new, asked, PRECISION)
    yield Change(
        rung="precision",
        field="trainer.precision",
        old=old.value,
        new=precision.value,
        reason=f"over {budgets}: {_precision_effect(before, new, new_estimate)}",
        pin="lowering.keep=[precision]",
    )


def _step_takes(seconds: float, old_seconds: float) -> str:
    """Two numbers that would be printed alike are one."""
    now, before = format_seconds(seconds), format_seconds(old_seconds)
    return f"a step takes {now} instead of {before}" if now != before else f"a step still takes {now}"


def _precision_effect(before: RunPlan, after: RunPlan, after_estimate: Estimate) -> str:
    """What shrinks (activations and time) and what stays (fp32 weights and Adam's moments)."""
    effects = []
    old_step, new_step = estimate_step_time(before).seconds, after_estimate.step.seconds
    if old_step is not None and new_step is not None:
        effects.append(_step_takes(new_step.mid, old_step.mid))
    if after.trainer.precision is Precision.tf32:
        return ", ".join([*effects, "memory stays"])
    saved = estimate_memory(before).device.mid - after_estimate.memory.device.mid
    if saved > 0:
        effects.append(f"activations shrink by {format_bytes(saved)}")
    return ", ".join([*effects, f"the {format_bytes(state_bytes(after))} of fp32 weights, gradients and Adam stay"])


def _batch_change(asked: RunPlan, asked_estimate: Estimate, new: RunPlan, new_estimate: Estimate) -> Iterator[Change]:
    old, size = asked.trainer, new.trainer
    if old.micro_batch_size == size.micro_batch_size:
        return
    usable = asked_estimate.memory.usable_bytes
    reason = (
        f"memory {format_bytes(asked_estimate.memory.device.high)} -> {format_bytes(new_estimate.memory.device.high)} "
        f"per rank at most, {format_bytes(usable or 0)} allowed; {size.grad_accum_steps} passes instead of "
        f"{old.grad_accum_steps}, still {old.tokens_per_step:,} tokens a step"
    )
    yield Change(
        rung="batch",
        field="trainer.micro_batch_size",
        old=str(old.micro_batch_size),
        new=str(size.micro_batch_size),
        reason=reason,
        pin="lowering.keep=[batch]",
    )
