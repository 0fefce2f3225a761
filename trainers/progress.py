"""What does the user see while it trains? A line a log interval; metrics.jsonl and the tracker get the same."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

from preflight.units import SECONDS_PER_HOUR, format_count, format_seconds, format_usd
from trainers.job import Job
from trainers.meters import Meters, mfu
from trainers.warn import warn

METRICS_NAME = "metrics.jsonl"
Metrics = dict[str, float | int | None]


class Progress:
    """Rank 0 prints and writes; on the other ranks every method does nothing."""

    def __init__(self, job: Job, meters: Meters, *, is_first_rank: bool) -> None:
        self.job, self.meters, self.is_first_rank = job, meters, is_first_rank
        self.first_step = 0
        self._lost: set[str] = set()  # what can no longer be written to, each said once

    def start_after(self, step: int) -> None:
        """Steps up to this one were done earlier."""
        self.first_step = step
        if self.is_first_rank:
            self._attempt(lambda: forget_metrics_after(self.job.run_dir / METRICS_NAME, step), METRICS_NAME)

    def say(self, text: str) -> None:
        """A line for the user; a reader that is gone is not tried again."""
        if self.is_first_rank and "the output" not in self._lost:
            self._attempt(lambda: print(text, file=self.job.progress, flush=True), "the output")

    def log(self, step: int, loss: float, learning_rate: float, grad_norm: float | None) -> None:
        """The line that people watch."""
        if not self.is_first_rank:
            return
        trainer = self.job.plan.trainer
        step_seconds = self.meters.steps.median_seconds()
        tokens_per_second = trainer.tokens_per_step / step_seconds if step_seconds else None
        utilisation = mfu(self.job.flops_per_step, step_seconds, self.job.peak_flops_per_second)
        elapsed_seconds = self.meters.watch.elapsed_seconds
        money_usd = (
            None if self.job.usd_per_hour is None else self.job.usd_per_hour * elapsed_seconds / SECONDS_PER_HOUR
        )
        self._write(step, {
            "train/loss": loss,
            "learning_rate": learning_rate,
            "grad_norm": grad_norm if grad_norm is not None and math.isfinite(grad_norm) else None,  # fp16 overflows
            "n_tokens": step * trainer.tokens_per_step,
            "step_seconds": step_seconds,
            "tokens_per_second": tokens_per_second,
            "mfu": utilisation,
            "elapsed_seconds": elapsed_seconds,
            "cost_usd": money_usd,
        })  # fmt: skip
        self.say(" | ".join((
            f"step {step:>{len(str(trainer.n_steps))}}/{trainer.n_steps}",
            f"loss {loss:.4f}",
            f"{format_count(tokens_per_second)} tok/s" if tokens_per_second else "tok/s unknown",
            f"MFU {utilisation:.1%}" if utilisation else "MFU unknown",
            f"elapsed {format_seconds(elapsed_seconds)}",
            f"left {format_seconds(self.remaining_seconds(step))}",
            "money unknown" if money_usd is None else format_usd(money_usd),
        )))  # fmt: skip

    def evaluated(self, step: int, val_loss: float, seconds: float) -> None:
        """The loss on held-out text."""
        if self.is_first_rank:
            self._write(step, {"val/loss": val_loss})
            self.say(f"step {step} | held-out loss {val_loss:.4f} | evaluated in {format_seconds(seconds)}")

    def remaining_seconds(self, step: int) -> float:
        """Steps left at the median pace; evaluations and checkpoints at the share they have had so far."""
        terms, n_done = self.meters.watch.terms_seconds, step - self.first_step
        beside_the_steps = (terms["evaluations"] + terms["checkpoints"]) / n_done if n_done else 0.0
        return (self.job.plan.trainer.n_steps - step) * ((self.meters.steps.median_seconds() or 0.0) + beside_the_steps)

    def _write(self, step: int, metrics: Metrics) -> None:
        def append() -> None:
            with (self.job.run_dir / METRICS_NAME).open("a") as file:
                file.write(json.dumps({"step": step, **metrics}) + "\n")

        self._attempt(append, METRICS_NAME)
        self.meters.tracker.log(metrics, step)

    def _attempt(self, write: Callable[[], None], what: str) -> None:
        """A closed pipe, a terminal that is gone or a full disk costs the line, never the training."""
        try:
            write()
        except (OSError, ValueError) as error:  # ValueError: the file object was closed
            if what not in self._lost:
                self._lost.add(what)
                warn(f"{what} cannot be written: {error}; training goes on")


def forget_metrics_after(path: Path, step: int) -> None:
    """Steps after the checkpoint are run again: keep one line for each, and drop what a crash has torn."""
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    kept = [line for line in lines if (of_line := _step_of(line)) is not None and of_line <= step]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(line + "\n" for line in kept))
    temporary.replace(path)


def _step_of(line: str) -> int | None:
    """None: torn by a crash or a full disk, or run into another line."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return None
