"""What is known of a run in progress: what it has used, what is still to do, and the traces of what slows it.

Rank 0 asks, between steps. The forecast and the guard are made of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from preflight.band import Band
from preflight.hw_plan import CardKind
from preflight.units import JOULES_PER_KWH, SECONDS_PER_HOUR
from trainers.card_meters import card_state
from trainers.causes import Evidence
from trainers.forecast import Forecast, Spending, Work, forecast
from trainers.job import Job
from trainers.meters import Meters, energy_kwh_of
from trainers.processor_meter import ProcessorMeter
from trainers.spent_book import SpentBook

NOISE = 0.1  # of eight steps on a processor, which others share: standard deviation over mean
NOISE_ON_CARDS = 0.03
FORWARD_FRACTION = 1 / 3  # of a training pass
CHECKPOINT_BYTES_PER_SECOND, CHECKPOINT_FIXED_SECONDS = 0.5e9, 0.3  # until one was written
WATTS_SPREAD, MEASURED_WATTS_SPREAD = 0.19, 0.03  # p10 and p90 around what is assumed, and what was counted
MAX_BESIDE = 0.25  # of a step
N_LATEST = 8  # steps, in which a compiler still at work shows


class Known:
    """Of this segment and, where it says so, of those before it."""

    def __init__(self, job: Job, meters: Meters, *, is_first_rank: bool) -> None:
        self.job, self.meters = job, meters
        self.book = SpentBook(job.run_dir, job.started_unix, resume=job.resume and is_first_rank)
        self.processor = ProcessorMeter()
        self._noise = NOISE_ON_CARDS if job.plan.hw.card.kind in (CardKind.cuda, CardKind.rocm) else NOISE
        self._joules: tuple[float, float] | None = None  # and when
        self._first_joules: tuple[float, float] | None = None

    def count(self, joules: float | None) -> None:
        """Of all ranks' cards, up to now."""
        if joules is not None:
            self._joules = joules, self.meters.watch.elapsed_seconds
            self._first_joules = self._first_joules or self._joules

    def forecast(self, step: int) -> Forecast | None:
        """None before steps have settled."""
        pace = self.meters.steps.pace
        return forecast(pace, self.work(step), self.spending(), self._noise) if pace.n_steps else None

    def spending(self, extra_seconds: float = 0.0) -> Spending:
        """So far, earlier segments included; `extra_seconds` are about to be spent."""
        earlier = self.book.earlier
        wall = self.meters.watch.elapsed_seconds + extra_seconds
        cost, energy = self._cost_usd(wall), self._energy_kwh(wall)
        return Spending(
            wall_seconds=earlier.wall_seconds + wall,
            cost_usd=None if cost is None or earlier.cost_usd is None else earlier.cost_usd + cost,
            usd_per_hour=self.job.usd_per_hour,
            energy_kwh=None if energy is None or earlier.energy_kwh is None else earlier.energy_kwh + energy,
            watts=self._watts(),
        )

    def note_spent(self, *, now: bool = False) -> None:
        """On the disk, for a resumed run to count on."""
        wall = self.meters.watch.elapsed_seconds
        self.book.note(wall, self._cost_usd(wall), self._energy_kwh(wall), now=now)

    def work(self, step: int) -> Work:
        """After `step` steps."""
        trainer, meters = self.job.plan.trainer, self.meters
        pace, evaluations = meters.steps.pace, meters.evaluation_seconds
        n_done = max(1, step - meters.first_step)
        beside = max(0.0, meters.watch.terms_seconds["steps"] - meters.steps.total_seconds) / n_done
        step_seconds = pace.to_come(1, self._noise).mid
        eval_tokens = trainer.n_eval_sequences * trainer.sequence_length
        return Work(
            n_steps=trainer.n_steps - step,
            beside_seconds=min(beside, MAX_BESIDE * step_seconds),
            n_evaluations=n_to_come(trainer.n_steps, step, trainer.eval_interval),
            evaluation_seconds=evaluations[1:] if trainer.compile else evaluations,  # the first one compiles
            expected_evaluation_seconds=FORWARD_FRACTION * step_seconds * eval_tokens / trainer.tokens_per_step,
            n_checkpoints=n_to_come(trainer.n_steps, step, trainer.checkpoint_interval),
            checkpoint_seconds=meters.checkpoint_seconds,
            expected_checkpoint_seconds=self.save_seconds(),
            end_seconds=self._billed("shutdown") or 0.0,
        )

    def evidence(self, the_forecast: Forecast) -> Evidence:
        """The whole run by its terms, as billed and as it goes."""
        meters, trainer, plan = self.meters, self.job.plan.trainer, self.job.plan
        watch, steps = meters.watch.terms_seconds, meters.steps
        waited = meters.stream.seconds if meters.stream else 0.0
        work = self.work(0)
        now = {
            "startup": watch["startup"],
            "data": watch["data"],
            "compile": steps.first_step_excess_seconds(),
            "steps": the_forecast.step_seconds.mid * trainer.n_steps,
            "evaluations": work.n_evaluations * _typical(work.evaluation_seconds, work.expected_evaluation_seconds),
            "checkpoints": work.n_checkpoints * _typical(work.checkpoint_seconds, work.expected_checkpoint_seconds),
        }
        billed = {term: seconds for term in now if (seconds := self._billed(term)) is not None}
        bill_step = self.job.estimate.get("estimate/step_seconds")
        factor = plan.calibration.factors.get("step_seconds")
        recent = steps.seconds[-N_LATEST:]
        return Evidence(
            bill_seconds=billed,
            now_seconds=now,
            step_seconds=the_forecast.step_seconds.mid,
            bill_step_seconds=float(bill_step) if isinstance(bill_step, int | float) else None,
            n_calibration_runs=factor.n_runs if factor else 0,
            is_warming_up=trainer.compile and max(recent) > 3 * min(recent),
            data_wait_fraction=waited / max(steps.total_seconds, 1e-9),
            processor_wait_fraction=self.processor.wait_fraction(),
            card=card_state(meters.energy.handle),
        )

    def _billed(self, term: str) -> float | None:
        seconds = self.job.estimate.get(f"estimate/wall_{term}_seconds")
        return float(seconds) if isinstance(seconds, int | float) else None

    def latest_step_seconds(self) -> float:
        """The median of the last few: a disturbance that is over is not in it."""
        seconds = self.meters.steps.seconds
        return statistics.median(seconds[-N_LATEST:]) if seconds else 0.0

    def save_seconds(self) -> float:
        """The longest of the last saves; until there was one, by its bytes."""
        if self.meters.checkpoint_seconds:
            return max(self.meters.checkpoint_seconds[-3:])
        n_bytes = self.job.estimate.get("estimate/checkpoint_bytes")
        written = float(n_bytes) if isinstance(n_bytes, int | float) else 0.0
        return CHECKPOINT_FIXED_SECONDS + written / CHECKPOINT_BYTES_PER_SECOND

    def ahead_seconds(self, step: int) -> float:
        """If step number `step`, which is under way, is not the last one: the next, an evaluation before it, a save."""
        evaluations, interval = self.meters.evaluation_seconds, self.job.plan.trainer.eval_interval
        is_due = interval and step % interval == 0 and evaluations
        due = statistics.median(evaluations[-N_LATEST:]) if is_due else 0.0
        return due + self.latest_step_seconds() + self.save_seconds()

    def _cost_usd(self, wall_seconds: float) -> float | None:
        rate = self.job.usd_per_hour
        return None if rate is None else rate * wall_seconds / SECONDS_PER_HOUR

    def _energy_kwh(self, wall_seconds: float) -> float | None:
        """Counted up to the last look, at the usual power since."""
        if self._joules is None:
            return energy_kwh_of(self.job, None, wall_seconds)
        joules, then = self._joules
        return energy_kwh_of(self.job, joules * max(1.0, wall_seconds / then), wall_seconds)

    def _watts(self) -> Band | None:
        """Of the machine while it trains, at the wall."""
        first, last = self._first_joules, self._joules
        if first is None or last is None or last[1] <= first[1]:
            return None if self.job.watts is None else _around(self.job.watts, WATTS_SPREAD, "assumed")
        seconds = last[1] - first[1]
        kwh = energy_kwh_of(self.job, last[0] - first[0], seconds)
        return None if kwh is None else _around(kwh * JOULES_PER_KWH / seconds, MEASURED_WATTS_SPREAD, "measured")


def n_to_come(n_steps: int, step: int, interval: int) -> int:
    """Events every `interval` steps and at the end."""
    if step >= n_steps:
        return 0
    return 1 if interval == 0 else -(-n_steps // interval) - step // interval


def _typical(measured: Sequence[float], expected: float) -> float:
    return statistics.median(measured) if measured else expected


def _around(watts: float, spread: float, source: str) -> Band:
    return Band(low=(1 - spread) * watts, mid=watts, high=(1 + spread) * watts, source=source)
