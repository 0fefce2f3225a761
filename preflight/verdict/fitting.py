"""What would fit: the largest micro-batch for the memory, the longest run for the other budgets.

Both are found by bisection over whole plans, so they use the same sums as the bill: memory grows with the
micro-batch, time and money grow with the number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from preflight.estimate import Estimate, estimate
from preflight.memory.peak import MemoryEstimate, estimate_memory
from preflight.memory.states import states_of
from preflight.memory.workload import workload_of
from preflight.plan import RunPlan, with_micro_batch_size
from preflight.schedule import (
    at_most_the_data,
    default_checkpoint_interval,
    default_eval_interval,
    default_n_eval_sequences,
)

# Mixed precision does not shrink these: fp32 weights 4, gradients 4, Adam's two moments 8 (Micikevicius et al.
# 2018, section 3.1; Rajbhandari et al. 2020, section 3.1 counts the same 16 bytes).
STATE_BYTES_PER_PARAM = 16


def state_bytes(plan: RunPlan) -> int:
    """Weights, gradients and the optimizer's states of one rank: what no smaller pass saves."""
    states = states_of(workload_of(plan))
    return states.weights + states.frozen_weights + states.gradients + states.optimizer


def fits_memory(memory: MemoryEstimate) -> bool:
    """The high edge is held against what may be used; memory that nobody knows is reported, not judged."""
    return memory.usable_bytes is None or memory.device.high <= memory.usable_bytes


def at_micro_batch_size(plan: RunPlan, size: int) -> RunPlan:
    """The same global batch in passes of another size."""
    fields = with_micro_batch_size(plan.trainer, size, plan.hw.world_size)
    trainer = replace(
        plan.trainer, micro_batch_size=fields["micro_batch_size"], grad_accum_steps=fields["grad_accum_steps"]
    )
    return replace(plan, trainer=trainer)


def largest_fitting(plan: RunPlan, sizes: Sequence[int]) -> int | None:
    """The largest of the ascending `sizes` whose memory fits; None when not even the first one does."""
    low, high = 0, len(sizes)  # sizes[:low] fit, sizes[high:] do not
    while low < high:
        middle = (low + high) // 2
        if fits_memory(estimate_memory(at_micro_batch_size(plan, sizes[middle]))):
            low = middle + 1
        else:
            high = middle
    return sizes[low - 1] if low else None


def at_n_steps(plan: RunPlan, n_steps: int) -> RunPlan:
    """A shorter run, evaluated and saved as often as it would be planned to be, unless that was given."""
    trainer = plan.trainer
    derived = {
        name: not plan.provenance.get(f"trainer.{name}", "").startswith("given")
        for name in ("eval_interval", "checkpoint_interval", "eval_tokens")
    }
    eval_interval = default_eval_interval(n_steps) if derived["eval_interval"] else trainer.eval_interval
    n_eval_sequences = trainer.n_eval_sequences
    if derived["eval_tokens"]:
        n_eval_sequences = at_most_the_data(
            default_n_eval_sequences(n_steps, eval_interval, trainer.tokens_per_step, trainer.sequence_length),
            plan.data.n_val_tokens,
            trainer.sequence_length,
            plan.hw.world_size,
        )
    return replace(
        plan,
        trainer=replace(
            trainer,
            n_steps=n_steps,
            n_warmup_steps=min(trainer.n_warmup_steps, n_steps),
            eval_interval=eval_interval,
            n_eval_sequences=n_eval_sequences,
            checkpoint_interval=default_checkpoint_interval(n_steps)
            if derived["checkpoint_interval"]
            else trainer.checkpoint_interval,
        ),
    )


def tokens_that_fit(plan: RunPlan, fits: Callable[[RunPlan, Estimate], bool]) -> int | None:
    """The most training tokens for which `fits` holds; None when not even one step does."""
    low, high = 0, plan.trainer.n_steps  # `low` steps fit (0 by convention), more than `high` do not
    while low < high:
        middle = (low + high + 1) // 2
        shorter = at_n_steps(plan, middle)
        if fits(shorter, estimate(shorter)):
            low = middle
        else:
            high = middle - 1
    return low * plan.trainer.tokens_per_step if low else None
