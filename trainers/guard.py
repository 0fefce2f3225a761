"""Is the run on its way to the bill, and does it stay within its budgets? Looked at between steps; rank 0 judges.

A budget stops a run when it is used up, or when even the forecast's low edge has been above it for a while; a machine's
time limit stops it just before. Stopping means: finish the step, save, exit code 6; `resume=` goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from conf.choices import Enforce
from preflight.actual import PEAKS
from preflight.units import format_bytes, format_seconds
from trainers import stopping
from trainers.causes import likely_cause
from trainers.forecast import Forecast
from trainers.job import Job
from trainers.known import Known
from trainers.limits import uses
from trainers.meters import Gathered, Meters
from trainers.time_limit import time_limit

MIN_STEPS = 3  # settled ones, before anything is said
PATIENCE_SECONDS = 60.0  # a forecast over budget must last so long, in a run of hours, before it stops it
PATIENCE_FRACTION = 0.02  # of what is left, in a shorter one
ALLOWANCE = 1.5  # steps and saves may take that much longer than those before
TEARDOWN_SECONDS = 10.0  # after the save, before the machine goes


class Guard:
    """Every rank has one and calls it at the same steps; only rank 0's says and decides."""

    def __init__(self, job: Job, meters: Meters, say: Callable[[str], None], *, is_first_rank: bool) -> None:
        self.job, self.meters, self.is_first_rank = job, meters, is_first_rank
        self.forecast: Forecast | None = None
        self.peaks_bytes: dict[str, int | None] = {}  # of all ranks, at the last look
        self.why = ""  # the run is stopped
        self.remedy = ""  # with which it goes on
        self.known = Known(job, meters, is_first_rank=is_first_rank)
        self._say = say
        self._reason = ""
        self._said: set[str] = set()
        self._over_since_seconds: dict[str, float] = {}
        self._limit = None
        if is_first_rank:
            meters.book = self.known.book
            self._limit = time_limit(job.plan.launcher, os.environ, started_unix=job.started_unix, now_unix=time.time())

    def vote(self, step: int) -> int:
        """This rank's view while step number `step` is under way, as an index of `stopping.REASONS`."""
        asked = self.job.stop.requested
        if asked:
            return stopping.REASONS.index(asked)
        if self.is_first_rank and not self._reason:
            self._judge_what_is_used(step)
        return stopping.REASONS.index(self._reason)

    def look(self, step: int) -> None:
        """Measure, forecast, judge. Every rank must call it at the same steps."""
        gathered = self.meters.gather()
        self.peaks_bytes = dict(zip(PEAKS, gathered.peaks_bytes, strict=True))
        if step - self.meters.first_step == 2:
            self.meters.note_early_peaks("step_2", gathered)
        if not self.is_first_rank:
            return
        self.known.count(gathered.joules)
        self.forecast = self.known.forecast(step)
        is_settled = self.meters.steps.pace.n_steps >= MIN_STEPS and step < self.job.plan.trainer.n_steps
        if self.forecast is not None and is_settled:
            self._hold_against_bill(self.forecast)
            self._hold_against_budgets(self.forecast)
            self._hold_memory(gathered)
        if step - self.meters.first_step == 1:
            self.known.processor.start()  # compilation and first-time work apart
        self.known.note_spent()

    def _judge_what_is_used(self, step: int) -> None:
        """Another step, an evaluation that is due, a save: what a run takes that does not stop now."""
        ahead, now = self.known.ahead_seconds(step), time.time()
        for use in uses(self.job.plan.budget, self.known.spending(ahead), self.forecast, now + ahead):
            if use.is_used_up:
                self._break(use.name, "Budget used up", use.used_up_text, use.remedy)
        if self._limit is not None and now + ALLOWANCE * ahead + TEARDOWN_SECONDS >= self._limit.end_unix_seconds:
            self._reason, self.why, self.remedy = stopping.OVER_TIME, f"{self._limit.source} is near", ""

    def _break(self, key: str, title: str, text: str, remedy: str) -> None:
        """A budget does not hold: the first that is found stops the run, or each is told."""
        if self.job.plan.budget.enforce is Enforce.warn:
            self._tell(key, title, f"{text}; it goes on (budget.enforce=warn)")
        elif not self._reason:
            self._reason, self.why, self.remedy = stopping.OVER_BUDGET, text, remedy

    def _hold_against_budgets(self, expected: Forecast) -> None:
        elapsed, stops = self.meters.watch.elapsed_seconds, self.job.plan.budget.enforce is Enforce.stop
        recent_over_mean = self.known.latest_step_seconds() / expected.step_seconds.mid
        patience = min(PATIENCE_SECONDS, PATIENCE_FRACTION * expected.remaining_seconds.mid)
        for use in uses(self.job.plan.budget, self.known.spending(), expected, time.time()):
            text = f"by the forecast {use.expected_text}"
            if not use.will_break(recent_over_mean):
                self._over_since_seconds.pop(use.name, None)
                if use.may_break:
                    self._tell(f"may {use.name}", "Budget in danger", text)
                continue
            since = self._over_since_seconds.setdefault(use.name, elapsed)
            if not stops or elapsed - since > patience:
                self._break(f"will {use.name}", "Budget will be broken", text, use.remedy)
            else:
                wait = f"it stops in {format_seconds(patience)} unless that changes"
                self._tell(f"will {use.name}", "Budget will be broken", f"{text}; {wait}")

    def _hold_memory(self, gathered: Gathered) -> None:
        """Tensors and context where an allocator counts them: what it keeps beyond that, it can give back."""
        allocated, _, device = gathered.peaks_bytes
        need = device if allocated is None else allocated + self.meters.memory.base_bytes
        usable = self.job.usable_bytes
        if usable is None or need is None or need <= usable:
            return
        fraction = f"budget.max_memory_fraction={self.job.plan.budget.max_memory_fraction:g}"
        text = f"measured memory {format_bytes(need)} of the {format_bytes(usable)} that {fraction} allows"
        self._break("memory", "Memory over budget", text, "budget.enforce=warn")

    def _hold_against_bill(self, expected: Forecast) -> None:
        """One line, once, when the forecast and the bill no longer have a wall time in common."""
        low, high = (self.job.estimate.get(f"estimate/wall_seconds_{edge}") for edge in ("low", "high"))
        if not isinstance(low, int | float) or not isinstance(high, int | float):
            return
        now = expected.wall_seconds
        if now.low <= high and now.high >= low:
            return
        side = "longer" if now.low > high else "less time"
        span = f"{format_seconds(now.mid)} ({format_seconds(now.low)} to {format_seconds(now.high)})"
        text = f"the run takes {side} than its bill: {span} instead of {format_seconds(low)} to {format_seconds(high)}"
        cause = likely_cause(self.known.evidence(expected))
        self._tell("bill", "Outside the bill's band", f"{text}; likely cause: {cause}")

    def _tell(self, key: str, title: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            self._say(text)
            self.meters.tracker.alert(title, text)
