"""What does the user see while it trains? A line a log interval; metrics.jsonl and the tracker get the same."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from preflight.money import format_money
from preflight.units import SECONDS_PER_DAY, format_count, format_seconds
from trainers.forecast import flat_forecast
from trainers.guard import Guard
from trainers.job import Job
from trainers.meters import Meters, mfu
from trainers.signals import LAUNCHER_KILLED
from trainers.warn import warn

METRICS_NAME = "metrics.jsonl"
N_EARLY_STEPS = 10  # a run of long steps is told within a few of them
Metrics = dict[str, float | int | None]


class Progress:
    """Rank 0 prints and writes; on the other ranks every method does nothing."""

    def __init__(self, job: Job, meters: Meters, *, is_first_rank: bool) -> None:
        self.job, self.meters, self.is_first_rank = job, meters, is_first_rank
        self.first_step = 0
        self._lost: set[str] = set()  # what can no longer be written to, each said once
        self.guard = Guard(job, meters, self.say, is_first_rank=is_first_rank)

    def start_after(self, step: int) -> None:
        """Steps up to this one were done earlier."""
        self.first_step = step
        if self.is_first_rank:
            self._attempt(lambda: forget_metrics_after(self.job.run_dir / METRICS_NAME, step), METRICS_NAME)

    def say(self, text: str) -> None:
        """A line for the user; a reader that is gone is not tried again."""
        if self.is_first_rank and "the output" not in self._lost:
            self._attempt(lambda: print(text, file=self.job.progress, flush=True), "the output")

    def is_early(self, step: int) -> bool:
        """After each of the first ten steps, and after 16, 32, ..., the guard has a look, however seldom lines are."""
        n = step - self.first_step
        return n <= N_EARLY_STEPS or n & (n - 1) == 0

    def look(self, step: int) -> None:
        """Measure and judge; every rank must call it."""
        with self._counted():
            self.guard.look(step)

    def log(self, step: int, loss: float, learning_rate: float, grad_norm: float | None) -> None:
        """The line that people watch, after a look."""
        if self.is_first_rank:
            with self._counted():
                self._log(step, loss, learning_rate, grad_norm)

    def _log(self, step: int, loss: float, learning_rate: float, grad_norm: float | None) -> None:
        trainer, spending = self.job.plan.trainer, self.guard.known.spending()
        step_seconds = self.meters.steps.recent_seconds()
        tokens_per_second = trainer.tokens_per_step / step_seconds if step_seconds else None
        utilisation = mfu(self.job.flops_per_step, step_seconds, self.job.peak_flops_per_second)
        forecast = {} if self.guard.forecast is None else flat_forecast(self.guard.forecast, time.time())
        self._write(step, {
            "train/loss": loss if math.isfinite(loss) else None,
            "learning_rate": learning_rate,
            "grad_norm": grad_norm if grad_norm is not None and math.isfinite(grad_norm) else None,  # fp16 overflows
            "n_tokens": step * trainer.tokens_per_step,
            "actual/step_seconds": step_seconds,
            "actual/tokens_per_second": tokens_per_second,
            "actual/mfu": utilisation,
            "actual/wall_seconds": spending.wall_seconds,
            "actual/cost_usd": spending.cost_usd,
            "actual/energy_kwh": spending.energy_kwh,
            **{f"actual/{leaf}": n_bytes for leaf, n_bytes in self.guard.peaks_bytes.items()},
            **forecast,
        })  # fmt: skip
        self.say(" | ".join((
            f"step {step:>{len(str(trainer.n_steps))}}/{trainer.n_steps}",
            f"loss {loss:.4f}",
            f"{format_count(tokens_per_second)} tok/s" if tokens_per_second else "tok/s unknown",
            f"MFU {utilisation:.1%}" if utilisation else "MFU unknown",
            f"elapsed {format_seconds(spending.wall_seconds)}",
            self._left_words(step),
            self._money_words(spending.cost_usd),
        )))  # fmt: skip

    def _left_words(self, step: int) -> str:
        """`left 7.5 min (7.1 min to 8.0 min), done 14:32`; before steps have settled nobody knows."""
        if step == self.job.plan.trainer.n_steps:
            return "left 0 s"
        if self.guard.forecast is None:
            return "left unknown yet"
        left = self.guard.forecast.remaining_seconds
        band = f"{format_seconds(left.low)} to {format_seconds(left.high)}"
        return f"left {format_seconds(left.mid)} ({band}), done {_clock(time.time() + left.mid, left.mid)}"

    def _money_words(self, usd: float | None) -> str:
        """`$0.12 of $0.45`: so far, and by the forecast."""
        if usd is None:
            return "money unknown"
        money = self.job.plan.budget.money
        final = None if self.guard.forecast is None else self.guard.forecast.cost_usd
        return format_money(usd, money) + ("" if final is None else f" of {format_money(final.mid, money)}")

    def evaluated(self, step: int, val_loss: float, seconds: float) -> None:
        """The loss on held-out text; every rank must call it."""
        with self._counted():
            if len(self.meters.evaluation_seconds) == 1:
                self.meters.note_early_peaks("evaluation", self.meters.gather())
            if self.is_first_rank:
                self._write(step, {"val/loss": val_loss})
                self.say(f"step {step} | held-out loss {val_loss:.4f} | evaluated in {format_seconds(seconds)}")

    def stopped(self, step: int, reason: str) -> None:
        """Why, and how it goes on; of a run that launch.py was asked to end, launch.py says so in its last lines."""
        if not self.guard.why and reason != LAUNCHER_KILLED:
            self.say(f"stopped after step {step} ({reason})")
            return
        why, remedy = self.guard.why or reason, f" {self.guard.remedy}".rstrip()
        self.say(f"stopped after step {step} ({why}), checkpoint saved")
        self.say(f"  To go on: python launch.py resume={self.job.run_dir}{remedy}")

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Its time is known, since it must be little."""
        begin = time.perf_counter()
        yield
        self.meters.logging_seconds += time.perf_counter() - begin

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


def _clock(unix_seconds: float, away_seconds: float) -> str:
    """This machine's time; with the day when it is another one."""
    return time.strftime(
        "%H:%M" if away_seconds < SECONDS_PER_DAY / 2 else "%a %d %b %H:%M", time.localtime(unix_seconds)
    )
