"""What does a checkpoint hold of the training, when is it written, and how does a run go on from one?

Everything that the next step depends on is in it: weights, optimizer, scaler, and how many steps are done. Data and
randomness are functions of (seed, step, micro-batch), so they need no saving. Where the plan says so, a thread writes a
copy while training goes on: a step waits for the copy and no longer, and the next save, or the end, for the thread.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from preflight.errors import ConfigError, Problem, TrainingFailed
from preflight.machine.host import read_linux
from preflight.machine.snapshot import World
from preflight.planfile import to_jsonable
from trainers import checkpoint, distributed, sharding
from trainers.job import Job
from trainers.meters import Meters

# Of the trainer's plan: what a checkpoint's states depend on, and what comes back with the optimizer's groups.
HELD = (
    "optimizer", "weight_decay", "beta1", "beta2", "adapter", "lora_rank", "lora_alpha", "lora_targets",
)  # fmt: skip

if TYPE_CHECKING:
    from trainers.gpt import GPT


class State(NamedTuple):
    """What a checkpoint holds of the training."""

    model: GPT
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler


class Resumed(NamedTuple):
    """Where a run goes on."""

    step: int = 0  # finished ones; 0: from the start
    wandb_run_id: str | None = None
    passed_over: tuple[str, ...] = ()  # newer checkpoints that are not sound


class Saver:
    """Every rank has one and calls it; rank 0's writes."""

    def __init__(self, job: Job, state: State, meters: Meters, world: World) -> None:
        self.job, self.state, self.meters, self.world = job, state, meters, world
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def save(self, step: int, *, at_once: bool = False) -> None:
        """The state after `step`; on the disk when this returns if `at_once`, else soon where saving runs beside."""
        self.wait()
        content = self._content()  # every rank gives its slices
        if self.world.rank != 0:
            return
        if at_once or not self.job.plan.trainer.save_beside or not has_room_for(content):
            self._write(step, content)
        else:
            self._pending = self._thread.submit(self._write, step, copied(content))

    def look(self) -> None:
        """Between two steps: what the thread has to complain about is told now, not at the next checkpoint."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Until what was begun is on the disk."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _content(self) -> dict[str, Any]:
        """The plan that made it and who was told are in it too."""
        return {
            "model": sharding.whole_model(self.state.model, keep=self.world.rank == 0),
            "optimizer": sharding.whole_optimizer(self.state.optimizer, keep=self.world.rank == 0),
            "scaler": self.state.scaler.state_dict(),
            "plan": json.dumps(to_jsonable(self.job.plan)),
            "wandb_run_id": self.meters.tracker.run_id,
            "train_loss": self.meters.train_loss,
            "val_loss": self.meters.val_loss,
            "val_step": self.meters.val_step,
        }

    def _write(self, step: int, content: Mapping[str, Any]) -> None:
        trainer = self.job.plan.trainer
        keep_best = trainer.keep_best
        checkpoint.save(self.job.run_dir, step, content, keep=trainer.keep_checkpoints, keep_best=keep_best)


def resume(job: Job, state: State, meters: Meters, world: World) -> Resumed:
    """The newest sound checkpoint, chosen by rank 0; what is newer is named."""
    model = to_jsonable(job.plan.model)
    path, passed_over = checkpoint.find_latest(job.run_dir, model) if world.rank == 0 else (None, ())
    if passed_over and path is None:
        raise TrainingFailed(_nothing_sound(job.run_dir, passed_over))
    if world.rank == 0:
        checkpoint.forget_torn_writes(job.run_dir)
    step = int(distributed.max_over_ranks([checkpoint.step_of(path) if path else 0])[0])
    if not step:
        return Resumed(passed_over=passed_over)
    saved = checkpoint.load(checkpoint.path_of(job.run_dir, step))
    refuse_other_states(job, saved, step)
    sharding.load_whole(state.model, state.optimizer, saved)
    if saved["scaler"]:  # empty: the steps so far had no use for one
        state.scaler.load_state_dict(saved["scaler"])
    meters.train_loss, meters.val_loss = saved["train_loss"], saved["val_loss"]
    meters.val_step = saved.get("val_step")
    return Resumed(step=step, wandb_run_id=saved["wandb_run_id"], passed_over=passed_over)


def refuse_other_states(job: Job, saved: Mapping[str, Any], step: int) -> None:
    """A plan that a hand has changed: what the states were made by, and what is restored with them, stays as it was."""
    theirs, ours = json.loads(saved["plan"])["trainer"], to_jsonable(job.plan.trainer)
    path = checkpoint.path_of(job.run_dir, step)
    problems = [
        Problem(
            path=f"trainer.{name}",
            value=str(ours[name]),
            message=f"{path} holds the states of trainer.{name}={theirs[name]}",
            fix=f"trainer.{name} = {json.dumps(theirs[name])} in {job.run_dir / 'plan.json'}, or a new run",
        )
        for name in HELD
        if name in theirs and theirs[name] != ours[name]
    ]
    if problems:
        raise ConfigError(problems)


def _nothing_sound(run_dir: Path, passed_over: Sequence[str]) -> str:
    """Beginning anew would pay for every step twice, and write over what somebody may still repair."""
    folder = run_dir / checkpoint.FOLDER
    return (
        f"no checkpoint can be gone on from: {'; '.join(passed_over)}\n"
        f"  To fix: mv {shlex.quote(str(folder))} ELSEWHERE, then the same command begins at step 0"
    )


def copied(value: Any) -> Any:
    """The same, its tensors in memory of their own on the host: training goes on changing the others."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(item) for item in value)
    return value


def has_room_for(content: Mapping[str, Any]) -> bool:
    """Twice, since others take memory too; without room the step waits for the disk instead."""
    if sys.platform.startswith("linux"):
        available_bytes = read_linux().memory_available_bytes  # limits of containers counted
    else:
        import psutil

        available_bytes = psutil.virtual_memory().available
    return 2 * checkpoint.tensor_bytes(content) <= available_bytes
