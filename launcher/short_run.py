"""How few steps of a plan tell what one of them takes, within a time?"""

from __future__ import annotations

from dataclasses import replace

from conf.choices import TrackingBackend, TrackingMode
from preflight.estimate import estimate
from preflight.plan import RunPlan

MIN_STEPS = 2  # the first one is never like the others
N_EVAL_PASSES = 4
CAUTION = 1.5  # times the expected step: the deadline should not be what ends the run


def n_steps_within(plan: RunPlan, seconds: float, max_steps: int) -> int:
    """As many as fit beside start-up, compilation, one evaluation and one checkpoint; 0: not even MIN_STEPS."""
    besides, step_seconds = _seconds_of(plan, max_steps)
    if step_seconds is None:  # nobody knows: try, the deadline ends it
        return max_steps
    n_steps = min(max_steps, int((seconds - besides) / step_seconds))
    return n_steps if n_steps >= min(MIN_STEPS, max_steps) else 0


def seconds_of_the_fewest(plan: RunPlan, max_steps: int) -> float:
    """What `n_steps_within` needs to find any."""
    besides, step_seconds = _seconds_of(plan, max_steps)
    return besides + min(MIN_STEPS, max_steps) * (step_seconds or 0.0)


def _seconds_of(plan: RunPlan, max_steps: int) -> tuple[float, float | None]:
    """What is paid for beside the steps, and one of them with caution."""
    needs = estimate(shortened(plan, max_steps, 1.0))
    besides = sum(term for name, term in needs.wall.terms_seconds.items() if name != "steps")
    return besides, None if needs.step.seconds is None else CAUTION * needs.step.seconds.mid


def shortened(plan: RunPlan, n_steps: int, grace_seconds: float) -> RunPlan:
    """The same step, few of them; one evaluation and one checkpoint at the end; nothing goes to a tracker online."""
    trainer, world_size = plan.trainer, plan.hw.world_size
    tracking = plan.tracking
    if tracking.backend is not TrackingBackend.none:
        tracking = replace(tracking, mode=TrackingMode.offline)
    return replace(
        plan,
        name=f"calibrate-{plan.name}",
        trainer=replace(
            trainer,
            n_steps=n_steps,
            n_warmup_steps=max(1, n_steps // 10),
            eval_interval=0,
            n_eval_sequences=min(trainer.n_eval_sequences, N_EVAL_PASSES * trainer.micro_batch_size * world_size),
            checkpoint_interval=n_steps,
            keep_checkpoints=1,
            log_interval=max(1, n_steps // 2),
        ),
        launcher=replace(plan.launcher, grace_seconds=grace_seconds),
        tracking=tracking,
    )


def with_n_steps(plan: RunPlan, n_steps: int) -> RunPlan:
    """The time was over earlier: what was done is recorded as what was asked for."""
    return replace(plan, trainer=replace(plan.trainer, n_steps=n_steps, checkpoint_interval=n_steps))
