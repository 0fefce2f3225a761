"""What did the run really take? Time by term, seconds a step, memory, energy; together they make the `Actual`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from preflight.actual import PEAKS, Actual, flat_actual
from preflight.planfile import write_json
from preflight.rates import spent_usd
from preflight.units import JOULES_PER_KWH
from trainers import distributed
from trainers.card_meters import EnergyMeter
from trainers.clocks import StepTimer, Stopwatch, Stream, TimedStream
from trainers.job import Job
from trainers.memory_meters import MemoryMeter
from trainers.outcome import Failure
from trainers.spent_book import SpentBook
from trainers.stopping import EXIT_CODES
from trainers.tracking import NoTracker, Tracker
from trainers.warn import warn

ACTUAL_NAME = "actual.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Of all ranks. None: unknown."""

    peaks_bytes: tuple[int | None, int | None, int | None]  # allocated, reserved, device: the largest
    joules: float | None  # the sum


class Meters:
    """All meters of one rank."""

    def __init__(self, started_unix: float) -> None:
        self.watch = Stopwatch(started_unix)
        self.steps = StepTimer()
        self.first_step = self.n_steps_done = 0
        self.train_loss: float | None = None
        self.val_loss: float | None = None
        self.val_step: int | None = None  # after which it was measured
        self.n_skipped_steps = 0
        self.evaluation_seconds: list[float] = []
        self.checkpoint_seconds: list[float] = []  # each, as far as the loop waited
        self.logging_seconds = 0.0  # inside calls that print, write and track
        self.early_peaks_bytes: dict[str, int | None] = {}
        self.stream: TimedStream | None = None
        self.book: SpentBook | None = None  # rank 0's
        self.tracker: Tracker = NoTracker()
        self.device: torch.device | None = None

    def attach(self, device: torch.device) -> None:
        """The device is known: start what looks at it. Before the model is built."""
        self.memory = MemoryMeter(device)
        self.steps.device = self.device = device
        self.energy = EnergyMeter(device)

    def timed(self, stream: Stream, device: torch.device) -> TimedStream:
        """The same stream, with a clock."""
        self.stream = TimedStream(stream, device)
        return self.stream

    def gather(self) -> Gathered:
        """Every rank must call it."""
        mine = self.energy.joules()
        peaks = _max_or_none(list(self.memory.peaks()))
        n_silent, joules = distributed.sum_over_ranks([float(mine is None), mine or 0.0])
        return Gathered(peaks_bytes=(peaks[0], peaks[1], peaks[2]), joules=None if n_silent else joules)

    def note_early_peaks(self, moment: str, gathered: Gathered) -> None:
        """Once: after step 2, and after the first evaluation."""
        for name, n_bytes in zip(PEAKS, gathered.peaks_bytes, strict=True):
            self.early_peaks_bytes.setdefault(f"{moment}_{name}", n_bytes)

    def actual(self, job: Job, reason: str, why: str = "") -> Actual:
        """The worst rank's memory, all ranks' energy, this rank's times; `why` in full. Every rank must call it."""
        gathered = self.gather()
        peaks = [*gathered.peaks_bytes, *_max_or_none([self.memory.base_bytes])]
        said = why or reason or "done"
        return self._actual(job, peaks, gathered.joules, int(EXIT_CODES[reason]), said, None)

    def record_failure(self, job: Job, cause: Failure) -> None:
        """What this rank knows goes to actual.json, unless another failed before; here no rank waits for another."""
        peaks: list[int | None] = [None] * 4
        if self.device is not None:
            with suppress(RuntimeError):  # a card that has failed may not answer: unknown then
                peaks = [*self.memory.peaks(), self.memory.base_bytes]
        measured = self._actual(job, peaks, None, cause.exit_code, cause.reason, cause.rank)
        if self.book is not None and measured.wall_seconds is not None:
            self.book.note(measured.wall_seconds, measured.cost_usd, measured.energy_kwh, now=True)
        try:
            write_json({"actual": measured}, job.run_dir / ACTUAL_NAME, exclusive=True)
        except FileExistsError:
            pass  # another rank was first
        except OSError as trouble:
            if job.run_dir.is_dir():  # else it is on another node: only rank 0's is read
                warn(f"{ACTUAL_NAME} was not written: {trouble}")
                with suppress(OSError):
                    (job.run_dir / ACTUAL_NAME).unlink()  # what a full disk has kept short
        self.tell_tracker(measured)

    def tell_tracker(self, measured: Actual) -> None:
        """The last word."""
        self.tracker.finish({**flat_actual(measured), "exit_reason": measured.exit_reason}, measured.exit_code)

    def _actual(
        self,
        job: Job,
        peaks: Sequence[int | None],
        joules: float | None,
        exit_code: int,
        exit_reason: str,
        failed_rank: int | None,
    ) -> Actual:
        """This rank's clock, and what is given."""
        plan = job.plan
        self.watch.lap("shutdown")
        terms_seconds = self._terms_seconds(plan.trainer.compile)
        wall_seconds = sum(terms_seconds.values())
        energy_kwh = energy_kwh_of(job, joules, wall_seconds)
        g_co2_per_kwh = plan.hw.electricity.g_co2_per_kwh
        step_seconds = self.steps.median_seconds()
        return Actual(
            peak_allocated_bytes=peaks[0],
            peak_reserved_bytes=peaks[1],
            peak_device_bytes=peaks[2],
            base_memory_bytes=peaks[3],
            step_seconds=step_seconds,
            step_seconds_p90=self.steps.p90_seconds(),
            tokens_per_second=plan.trainer.tokens_per_step / step_seconds if step_seconds else None,
            mfu=mfu(job.flops_per_step, step_seconds, job.peak_flops_per_second),
            wall_seconds=wall_seconds,
            wall_terms_seconds=terms_seconds,
            cost_usd=spent_usd(plan.hw, job.usd_per_hour, wall_seconds, None if joules is None else energy_kwh),
            energy_kwh=energy_kwh,
            co2_kg=None if energy_kwh is None or g_co2_per_kwh is None else energy_kwh * g_co2_per_kwh / 1e3,
            n_steps_done=self.n_steps_done,
            n_skipped_steps=self.n_skipped_steps,
            first_step=self.first_step,
            logging_seconds=self.logging_seconds,
            early_peaks_bytes=self.early_peaks_bytes,
            train_loss=self.train_loss,
            val_loss=self.val_loss,
            exit_code=exit_code,
            exit_reason=exit_reason,
            failed_rank=failed_rank,
            device=_device_name(self.device, plan.hw.card.label),
            torch=torch.__version__,
            energy_is_measured=joules is not None,
        )

    def _terms_seconds(self, is_compiled: bool) -> dict[str, float]:
        """What the first step (and a compiled model's first evaluation) took beyond an ordinary one is `compile`."""
        terms = dict(self.watch.terms_seconds)
        waited = min(terms["steps"], self.stream.seconds if self.stream else 0.0)
        terms["steps"], terms["data_wait"] = terms["steps"] - waited, waited
        excess = {"steps": self.steps.first_step_excess_seconds()}
        if is_compiled and len(self.evaluation_seconds) > 1:
            excess["evaluations"] = self.evaluation_seconds[0] - statistics.median(self.evaluation_seconds[1:])
        for term, seconds in excess.items():
            seconds = max(0.0, min(seconds, terms[term]))
            terms[term] -= seconds
            terms["compile"] += seconds
        return terms


def energy_kwh_of(job: Job, joules: float | None, wall_seconds: float) -> float | None:
    """The cards' counters, the host beside them, what the building adds; without counters the bill's watts."""
    hw = job.plan.hw
    if joules is None:
        return None if job.watts is None else job.watts * wall_seconds / JOULES_PER_KWH
    host_joules = (hw.host_watts or 0.0) * hw.n_nodes * wall_seconds
    return (joules + host_joules) * hw.electricity.pue / JOULES_PER_KWH


def _device_name(device: torch.device | None, label: str) -> str:
    """What the driver calls the card; a processor is called what the plan calls it."""
    return torch.cuda.get_device_name(device) if device is not None and device.type == "cuda" else label


def mfu(flops_per_step: float, step_seconds: float | None, peak_flops_per_second: float | None) -> float | None:
    """Model FLOPs utilisation (Chowdhery et al. 2022, appendix B); None where the peak is unknown."""
    return flops_per_step / step_seconds / peak_flops_per_second if step_seconds and peak_flops_per_second else None


def _max_or_none(values: list[int | None]) -> list[int | None]:
    """Element-wise over ranks; unknown on one rank alone cannot be."""
    largest = distributed.max_over_ranks([-1.0 if value is None else float(value) for value in values])
    return [None if value < 0 else int(value) for value in largest]
