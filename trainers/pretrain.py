"""The recipe: pretrain a GPT by the plan, measure what it took. Reads top to bottom, in nanoGPT's order of events.

    python launch.py                    bill, then this loop in one process
    python launch.py hw=4x4090          the same under torchrun, one process a card
    torchrun --nproc_per_node=4 launch.py

Exact on CPU: a resumed run has the weights, optimizer state, data order and dropout masks of an undisturbed one, since
data and randomness are functions of (seed, step, micro-batch) and nothing else.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from preflight.actual import Actual
from preflight.machine.snapshot import World
from preflight.plan import RunPlan, TrainerPlan
from preflight.planfile import to_jsonable, write_json
from trainers import distributed, sharding, stopping
from trainers.blame import blame
from trainers.build import build_model
from trainers.data import TrainStream, eval_batches
from trainers.job import Job as Job
from trainers.meters import ACTUAL_NAME, Meters
from trainers.nonfinite import SkippedSteps
from trainers.optimizers import make_optimizer, set_learning_rate
from trainers.precision import autocast, make_scaler, set_matmul_precision
from trainers.prepare import ensure_prepared
from trainers.progress import Progress
from trainers.state import Resumed, Saver, State, resume
from trainers.tracking import make_tracker


def train(job: Job) -> Actual:
    """Every rank runs this; rank 0 writes RUN_DIR. When it raises, actual.json says how far the run came and why."""
    meters = Meters(job.started_unix)
    try:
        return pretrain(job, meters)
    except Exception as error:
        rank = distributed.world_from_environment().rank
        meters.record_failure(job, blame(job.run_dir, rank, meters.n_steps_done, error))
        raise


def pretrain(job: Job, meters: Meters) -> Actual:  # noqa: C901, PLR0915 - a recipe cut into pieces is no recipe
    """The recipe."""

    # ---- ranks, device, precision
    trainer = job.plan.trainer
    world = distributed.world_from_environment()
    is_first_rank = world.rank == 0
    device = distributed.pick_device(job.plan.hw.card.kind, world)
    if device.type == "cpu":
        distributed.share_cpu_threads(job.plan.hw.n_cpu_cores, world)
    distributed.join(world, device)
    set_matmul_precision(trainer.precision, trainer.float32_matmul_precision)
    progress = Progress(job, meters, is_first_rank=is_first_rank)
    meters.watch.lap("startup")

    if is_first_rank:
        (job.run_dir / ACTUAL_NAME).unlink(missing_ok=True)  # of the segment that is resumed

    # ---- data: one rank a node prepares it, when it is the kind that takes seconds
    if world.local_rank == 0:
        ensure_prepared(job.plan, progress.say)
    distributed.wait_for_all()
    plan = replace(job.plan, data=ensure_prepared(job.plan, progress.say))
    stream = meters.timed(TrainStream(plan, world, device), device)
    meters.watch.lap("data")

    # ---- model and optimizer
    meters.attach(device)
    raw_model = build_model(plan, sharding.birthplace(trainer, world, device))
    sharding.shard(raw_model, trainer, world, device)
    optimizer = make_optimizer(raw_model, trainer, sharding.maker(trainer, world))
    scaler = make_scaler(trainer.precision, device)

    # ---- resume
    state = State(raw_model, optimizer, scaler)
    resumed = resume(job, state, meters, world) if job.resume else Resumed()
    step = resumed.step
    meters.tracker = make_tracker(
        plan,
        job.run_dir,
        config=to_jsonable(plan),
        estimate_flat=job.estimate,
        resume_id=resumed.wandb_run_id,
        rank=world.rank,
    )
    progress.start_after(step)
    for line in resumed.passed_over:
        progress.say(f"passed over {line}")
    if job.resume:
        progress.say(f"resumed after step {step}")

    # ---- compile, then wrap
    model, ddp_model = sharding.wrap(raw_model, trainer, world, device)

    # ---- the loop; `step` counts finished steps
    raw_model.train()
    losses: list[torch.Tensor] = []  # since the last look: looking makes the host wait for the device
    reason, grad_norm = "", None
    saver, skipped = Saver(job, state, meters, world), SkippedSteps(trainer, scaler)
    inputs, targets = stream.micro_batch(step, 0)
    meters.first_step = meters.n_steps_done = step
    meters.watch.lap("startup")
    if is_due(trainer.eval_interval, step) and meters.val_step != step:  # a stop came before the evaluation
        look_at_held_out(model, plan, world, device, meters, progress, step)

    while step < trainer.n_steps and not reason:
        meters.steps.begin()
        step_rate = learning_rate(trainer, step)
        set_learning_rate(optimizer, step_rate)

        # forward and backward, `grad_accum_steps` times; ranks exchange gradients in the last pass only
        step_loss = torch.zeros((), device=device)
        for micro_step in range(trainer.grad_accum_steps):
            is_last = micro_step == trainer.grad_accum_steps - 1
            torch.manual_seed(seed_of(plan.seed, step, micro_step * world.world_size + world.rank))  # dropout
            no_sync = isinstance(ddp_model, DistributedDataParallel) and not is_last
            with ddp_model.no_sync() if no_sync else nullcontext():  # type: ignore[operator]
                with autocast(trainer.precision, device):
                    loss = ddp_model(inputs, targets) / trainer.grad_accum_steps
                # the next batch is fetched while the device is busy with this one
                inputs, targets = stream.micro_batch(step + is_last, 0 if is_last else micro_step + 1)
                scaler.scale(loss).backward()
            step_loss += loss.detach()

        # clip, update, let go of the gradients
        votes = distributed.begin_vote(progress.guard.vote(step + 1))
        if trainer.grad_clip:
            scaler.unscale_(optimizer)
            grad_norm = sharding.clip_gradients(raw_model, trainer.grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        skipped.count(step)
        saver.look()
        losses.append(step_loss)
        meters.steps.end()
        is_end = step == trainer.n_steps
        asked = stopping.REASONS[votes()]  # every vote is waited for: one that is under way keeps a rank from leaving
        reason = "" if is_end else asked  # asked for or not, it is done

        # look at the losses
        must_evaluate = is_end or (is_due(trainer.eval_interval, step) and not reason)
        must_save = is_end or is_due(trainer.checkpoint_interval, step)
        must_log = is_end or bool(reason) or step % trainer.log_interval == 0 or step == 1
        must_look = must_log or progress.is_early(step)
        if must_look or must_evaluate or must_save or device.type == "cpu":
            recent = distributed.mean_over_ranks(torch.stack(losses).tolist())
            losses.clear()
            meters.steps.collect()
            skipped.check(recent, step)
            meters.n_steps_done, meters.train_loss, meters.n_skipped_steps = step, recent[-1], skipped.n_skipped
        if reason:  # asked to stop: nothing comes before the checkpoint
            meters.watch.lap("steps")
            saver.save(step, at_once=True)
            meters.checkpoint_seconds.append(meters.watch.lap("checkpoints"))
        if must_look:
            progress.look(step)
        if must_log:
            progress.log(step, recent[-1], step_rate, None if grad_norm is None else grad_norm.item())
        meters.watch.lap("steps")

        # evaluate, save
        if must_evaluate:
            look_at_held_out(model, plan, world, device, meters, progress, step)
        if must_save and not reason:
            saver.save(step, at_once=is_end)
            meters.checkpoint_seconds.append(meters.watch.lap("checkpoints"))

    # ---- the end: measure once more after the tracker has been told, which takes time too
    if reason:
        progress.stopped(step, reason)
    why = progress.guard.why
    measured = meters.actual(job, reason, why)
    if is_first_rank:
        write_json({"actual": measured}, job.run_dir / ACTUAL_NAME)  # the tracker may take its time, or be killed
        meters.tell_tracker(measured)
    measured = meters.actual(job, reason, why)
    if is_first_rank:
        progress.guard.known.note_spent(now=True)
        write_json({"actual": measured}, job.run_dir / ACTUAL_NAME)
    distributed.leave()
    return measured


def learning_rate(trainer: TrainerPlan, step: int) -> float:
    """Linear warm-up, then half a cosine down to the minimum at the last step."""
    if step < trainer.n_warmup_steps:
        return trainer.learning_rate * (step + 1) / (trainer.n_warmup_steps + 1)
    done_fraction = (step - trainer.n_warmup_steps) / max(1, trainer.n_steps - trainer.n_warmup_steps)
    height = 0.5 * (1.0 + math.cos(math.pi * min(1.0, done_fraction)))  # 1 .. 0
    return trainer.min_learning_rate + height * (trainer.learning_rate - trainer.min_learning_rate)


@torch.no_grad()
def evaluate(model: nn.Module, plan: RunPlan, world: World, device: torch.device) -> float:
    """Mean loss over the same held-out sequences every time, shared out among the ranks."""
    model.eval()
    total, n_sequences = torch.zeros((), device=device), 0
    for inputs, targets, n in eval_batches(plan, world, device):
        with autocast(plan.trainer.precision, device):
            total += model(inputs, targets) * n
        n_sequences += n
    model.train()
    loss_sum, count = distributed.sum_over_ranks([total.item(), float(n_sequences)])
    return loss_sum / count


def look_at_held_out(
    model: nn.Module, plan: RunPlan, world: World, device: torch.device, meters: Meters, progress: Progress, step: int
) -> None:
    """Evaluate, and tell."""
    meters.val_loss, meters.val_step = evaluate(model, plan, world, device), step
    meters.evaluation_seconds.append(meters.watch.lap("evaluations"))
    progress.evaluated(step, meters.val_loss, meters.evaluation_seconds[-1])


def is_due(interval: int, step: int) -> bool:
    """Every so many steps, never when that is 0."""
    return interval > 0 and step > 0 and step % interval == 0


def seed_of(seed: int, step: int, micro_batch: int) -> int:
    """Randomness of one micro-batch of the global batch: the same on any number of ranks, and nothing to restore."""
    return (seed * 1_000_003 + step) * 65_537 + micro_batch
