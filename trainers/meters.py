"""What did the run really take? Time by term, seconds a step, memory, energy; together they make the `Actual`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from preflight.actual import Actual, flat_actual
from preflight.errors import ExitCode, PreflightError
from preflight.planfile import write_json
from preflight.units import JOULES_PER_KWH, SECONDS_PER_HOUR
from trainers import distributed
from trainers.job import Job
from trainers.memory_meters import MemoryMeter
from trainers.stopping import EXIT_CODES
from trainers.tracking import NoTracker, Tracker
from trainers.warn import warn

ACTUAL_NAME = "actual.json"
N_WARMUP_STEPS = 5  # allocators, caches and clocks settle; not counted in the median when there are more


class Stopwatch:
    """Every second since launch.py started belongs to exactly one term, so the terms sum to the wall time."""

    def __init__(self, started_unix: float) -> None:
        self.terms_seconds = dict.fromkeys(
            ("startup", "compile", "steps", "evaluations", "checkpoints", "data", "shutdown"), 0.0
        )
        self._mark = time.perf_counter()
        self.terms_seconds["startup"] = max(0.0, time.time() - started_unix)

    def lap(self, term: str) -> float:
        """What has passed since the last lap was `term`."""
        now = time.perf_counter()
        seconds, self._mark = now - self._mark, now
        self.terms_seconds[term] += seconds
        return seconds

    @property
    def elapsed_seconds(self) -> float:
        """Since launch.py started."""
        return sum(self.terms_seconds.values()) + time.perf_counter() - self._mark


class StepTimer:
    """Seconds of each step: CUDA events on a card, which time without making the host wait, else the clock."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.seconds: list[float] = []
        self._pending: list[tuple[Any, Any]] = []
        self._begin: Any = None

    def begin(self) -> None:
        """A step begins."""
        self._begin = self._now()

    def end(self) -> None:
        """It has been issued (cuda) or is done."""
        if self.device.type == "mps":
            torch.mps.synchronize()
        self._pending.append((self._begin, self._now()))

    def collect(self) -> None:
        """Read the clocks of the steps so far; call it where the host has waited for the device anyway."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self.seconds += [begin.elapsed_time(end) / 1e3 for begin, end in self._pending]
        else:
            self.seconds += [end - begin for begin, end in self._pending]
        self._pending.clear()

    def settled(self) -> list[float]:
        """After the warm-up; all but the first where a run is too short for one."""
        return self.seconds[min(N_WARMUP_STEPS, max(0, len(self.seconds) - 1)) :]

    def median_seconds(self) -> float | None:
        """Of the settled steps."""
        return statistics.median(self.settled()) if self.seconds else None

    def p90_seconds(self) -> float | None:
        """Of the settled steps: the slow ones."""
        settled = sorted(self.settled())
        return settled[min(len(settled) - 1, int(0.9 * len(settled)))] if settled else None

    def first_step_excess_seconds(self) -> float:
        """Compilation and first-time work: what the first step took beyond an ordinary one."""
        return self.seconds[0] - (self.median_seconds() or 0.0) if len(self.seconds) > 1 else 0.0

    def _now(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class EnergyMeter:
    """The card's own counter of joules (NVML, Volta and newer). Elsewhere None: watts x hours is no measurement."""

    def __init__(self, device: torch.device) -> None:
        self._handle = _nvml_handle(device)
        self._start = self._millijoules()

    def joules(self) -> float | None:
        """Since this meter was made."""
        now = self._millijoules()
        return None if now is None or self._start is None else (now - self._start) / 1e3

    def _millijoules(self) -> int | None:
        if self._handle is None:
            return None
        import pynvml

        try:
            return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        except pynvml.NVMLError:  # older than Volta, or a MIG slice: no counter
            return None


def _nvml_handle(device: torch.device) -> Any:
    """By UUID, since CUDA_VISIBLE_DEVICES renumbers cards and NVML does not follow."""
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except pynvml.NVMLError:  # no NVML in this container, or a MIG slice
        return None


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
        self.tracker: Tracker = NoTracker()
        self.device: torch.device | None = None

    def attach(self, device: torch.device) -> None:
        """The device is known: start what looks at it. Before the model is built."""
        self.memory = MemoryMeter(device)
        self.steps.device = self.device = device
        self.energy = EnergyMeter(device)

    def actual(self, job: Job, reason: str) -> Actual:
        """The worst rank's memory, all ranks' energy, this rank's times. Every rank must call it."""
        peaks = _max_or_none([*self.memory.peaks(), self.memory.base_bytes])
        n_silent, joules = distributed.sum_over_ranks(
            [float(self.energy.joules() is None), self.energy.joules() or 0.0]
        )
        return self._actual(job, peaks, None if n_silent else joules, int(EXIT_CODES[reason]), reason or "done", None)

    def record_failure(self, job: Job, error: Exception) -> None:
        """What this rank knows goes to actual.json, unless another failed before; here no rank waits for another."""
        rank = distributed.world_from_environment().rank
        code = int(error.exit_code if isinstance(error, PreflightError) else ExitCode.TRAINING_FAILED)
        reason = f"rank {rank}, after step {self.n_steps_done}: {str(error) or type(error).__name__}"
        peaks: list[int | None] = [None] * 4
        if self.device is not None:
            with suppress(RuntimeError):  # a card that has failed may not answer: unknown then
                peaks = [*self.memory.peaks(), self.memory.base_bytes]
        measured = self._actual(job, peaks, None, code, reason, rank)
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
        energy_kwh = _energy_kwh(job, joules, wall_seconds)
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
            cost_usd=None if job.usd_per_hour is None else job.usd_per_hour * wall_seconds / SECONDS_PER_HOUR,
            energy_kwh=energy_kwh,
            co2_kg=None if energy_kwh is None or g_co2_per_kwh is None else energy_kwh * g_co2_per_kwh / 1e3,
            n_steps_done=self.n_steps_done,
            n_skipped_steps=self.n_skipped_steps,
            first_step=self.first_step,
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
        excess = {"steps": self.steps.first_step_excess_seconds()}
        if is_compiled and len(self.evaluation_seconds) > 1:
            excess["evaluations"] = self.evaluation_seconds[0] - statistics.median(self.evaluation_seconds[1:])
        for term, seconds in excess.items():
            seconds = max(0.0, min(seconds, terms[term]))
            terms[term] -= seconds
            terms["compile"] += seconds
        return terms


def _energy_kwh(job: Job, joules: float | None, wall_seconds: float) -> float | None:
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
