"""When will it be done, and what will it have cost? Arithmetic over what was measured so far: no clock, no disk.

Steps are looked at in chunks. In each, what takes more than `STALL` times the median is a stall, the others its body.
The body's mean carries on: it is bounded by its median, so that nothing wild moves it, and where slowness comes in
phases it sees them, as a median would not. Stalls are events of their own: all but one of those so far are expected to
come back at the same rate, with their median length; a single one, however long, says nothing about the rest.
How far off the mean of the steps to come may be is read off the means of longer and longer stretches (batch means;
Law, Simulation Modeling and Analysis, 9.5.3), since neighbours are alike; the widest answer counts, and what is assumed
beforehand counts as `PRIOR_BLOCKS` stretches. Edges are p10 and p90.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from preflight.band import Band
from preflight.units import JOULES_PER_KWH, SECONDS_PER_HOUR

CHUNK = 8  # steps
STALL = 1.5  # times the median
MAX_BLOCKS = 32  # of chunks; then neighbours merge and blocks are twice as long
STRETCHES = (3, 6, 12, 24)  # into so many the run so far is cut
MAX_STALLS = 200  # whose lengths are remembered
PRIOR_BLOCKS = 3.0
P90_SIGMAS = 1.2816
UP = 1.35  # disturbances make steps slower: the band reaches further up
DOWN = 0.9
DRIFT = 0.25  # times the noise that is assumed: how far clocks, temperatures and neighbours may leave what was seen
ALIKE_CHUNKS = 6  # neighbours, of which the noise is assumed to be the same
EVENT_SPREAD = 0.15  # of one evaluation or checkpoint, standard deviation over its time
MEDIAN_VARIANCE = 1.571  # pi / 2: of a median, in units of the variance of a mean
LOW_FACTOR, HIGH_FACTOR = 0.5, 2.0  # around what was never measured
MEASURED = "measured"


class Pace:
    """What the settled steps so far say; a few numbers, however many steps there were."""

    def __init__(self) -> None:
        self.n_steps = 0
        self.n_stalls = 0
        self.stalls_seconds: list[float] = []  # beyond an ordinary step; the latest ones
        self.block_chunks = 1  # chunks a block
        self.means: list[float] = []  # of the bodies, block by block
        self._block: list[float] = []  # chunks of the one that is filling
        self._chunk: list[float] = []

    def add(self, seconds: float) -> None:
        """One more step."""
        self.n_steps += 1
        self._chunk.append(seconds)
        if len(self._chunk) < CHUNK:
            return
        body, stalls = split(self._chunk)
        self._chunk = []
        self.n_stalls += len(stalls)
        self.stalls_seconds = (self.stalls_seconds + stalls)[-MAX_STALLS:]
        self._block.append(body)
        if len(self._block) == self.block_chunks:
            self.means.append(statistics.fmean(self._block))
            self._block = []
        if len(self.means) == MAX_BLOCKS:
            self.means = [(a + b) / 2 for a, b in zip(self.means[::2], self.means[1::2], strict=True)]
            self.block_chunks *= 2

    def to_come(self, n_steps: int, assumed_spread: float) -> Band:
        """Mean seconds of the next `n_steps`; `assumed_spread`: a chunk's noise, standard deviation over mean."""
        means, stalls, n_stalls = list(self.means), list(self.stalls_seconds), self.n_stalls
        if self._chunk and len(self._chunk) >= (CHUNK // 2 if means else 1):
            body, more = split(self._chunk)
            means, stalls, n_stalls = [*means, body], stalls + more, n_stalls + len(more)
        mean = statistics.fmean(means)
        degrees = PRIOR_BLOCKS + len(means) - 1
        n_seen, n_next = self.n_steps / CHUNK / ALIKE_CHUNKS, n_steps / CHUNK / ALIKE_CHUNKS
        assumed = (assumed_spread * mean) ** 2 * (1.0 / (1.0 + n_seen) + 1.0 / (1.0 + n_next))
        seen = self._variance(means, n_steps)
        variance = (PRIOR_BLOCKS * assumed + (len(means) - 1) * seen) / degrees + (DRIFT * assumed_spread * mean) ** 2
        reach = t_p90(degrees) * sqrt(variance)
        n_back, length = max(0, n_stalls - 1), statistics.median(stalls) if stalls else 0.0
        expected = n_back * length / self.n_steps
        stalls_reach = P90_SIGMAS * sqrt(n_back * (1.0 + self.n_steps / max(1, n_steps))) * length / self.n_steps
        mid = mean + expected
        return Band(
            low=max(0.5 * mid, mid - DOWN * sqrt(reach**2 + stalls_reach**2)),
            mid=mid,
            high=mid + UP * sqrt(reach**2 + stalls_reach**2),
            source=MEASURED,
        )

    def _variance(self, means: Sequence[float], n_steps: int) -> float:
        """Of the mean of the next steps around the mean of those so far: the widest of several ways to cut."""
        found = [0.0]
        for n_stretches in STRETCHES:
            size = len(means) // n_stretches
            if not size:
                break
            used = means[len(means) - n_stretches * size :]
            stretches = [statistics.fmean(used[i * size : (i + 1) * size]) for i in range(n_stretches)]
            n_next = max(1, n_steps) / (size * self.block_chunks * CHUNK)
            found.append(_variance(stretches) * (1.0 / n_stretches + 1.0 / max(1.0, n_next)))
        return max(found)


def _variance(values: Sequence[float]) -> float:
    """In floats, which is exact enough and fast enough for every log line; `statistics` adds fractions."""
    mean = statistics.fmean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def split(chunk: Sequence[float]) -> tuple[float, list[float]]:
    """The mean of its body, and what each of its stalls took beyond that."""
    limit = STALL * statistics.median(chunk)
    body = statistics.fmean(seconds for seconds in chunk if seconds <= limit)
    return body, [seconds - body for seconds in chunk if seconds > limit]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is still to be done, and what its parts have taken so far."""

    n_steps: int
    beside_seconds: float  # of a step: logging and the like, beyond the step itself
    n_evaluations: int
    evaluation_seconds: Sequence[float]  # each so far; empty: `expected_evaluation_seconds`
    expected_evaluation_seconds: float
    n_checkpoints: int
    checkpoint_seconds: Sequence[float]
    expected_checkpoint_seconds: float
    end_seconds: float  # after the last step: what the bill says


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Used up so far, earlier segments included, and the rates. None: unknown."""

    wall_seconds: float
    cost_usd: float | None
    usd_per_hour: float | None
    energy_kwh: float | None
    watts: Band | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Of the whole run, every segment of it."""

    step_seconds: Band  # of the steps to come, on average
    remaining_seconds: Band
    wall_seconds: Band
    cost_usd: Band | None
    energy_kwh: Band | None


def t_p90(degrees: float) -> float:
    """p90 of Student's t by its expansion around the normal one (Fisher and Cornish, 1960), first term."""
    return P90_SIGMAS * (1.0 + (P90_SIGMAS**2 + 1.0) / (4.0 * degrees))


def event_seconds(n: int, measured: Sequence[float], expected: float) -> Band:
    """`n` evaluations or checkpoints to come: the median of those so far, or what is expected of the first."""
    if not n:
        return Band(low=0.0, mid=0.0, high=0.0, source=MEASURED)
    if not measured:
        return Band(low=LOW_FACTOR * n * expected, mid=n * expected, high=HIGH_FACTOR * n * expected, source="expected")
    mid = n * statistics.median(measured)
    reach = P90_SIGMAS * EVENT_SPREAD * sqrt(1.0 / n + MEDIAN_VARIANCE / len(measured)) * mid
    return Band(low=max(LOW_FACTOR * mid, mid - DOWN * reach), mid=mid, high=mid + UP * reach, source=MEASURED)


def added(bands: Sequence[Band]) -> Band:
    """Parts that err independently: their distances to the edges add like the sides of a right angle."""
    mid = sum(band.mid for band in bands)
    return Band(
        low=max(0.0, mid - sqrt(sum((band.mid - band.low) ** 2 for band in bands))),
        mid=mid,
        high=mid + sqrt(sum((band.high - band.mid) ** 2 for band in bands)),
        source=MEASURED,
    )


def forecast(pace: Pace, work: Work, spending: Spending, assumed_spread: float) -> Forecast:
    """From at least one settled step."""
    step = pace.to_come(work.n_steps, assumed_spread)
    end = Band(low=0.0, mid=work.end_seconds, high=HIGH_FACTOR * work.end_seconds, source="expected")
    remaining = added((
        step.scaled(work.n_steps).plus(work.n_steps * work.beside_seconds),
        event_seconds(work.n_evaluations, work.evaluation_seconds, work.expected_evaluation_seconds),
        event_seconds(work.n_checkpoints, work.checkpoint_seconds, work.expected_checkpoint_seconds),
        end,
    ))  # fmt: skip
    return Forecast(
        step_seconds=step,
        remaining_seconds=remaining,
        wall_seconds=remaining.plus(spending.wall_seconds),
        cost_usd=_cost_usd(remaining, spending),
        energy_kwh=_energy_kwh(remaining, spending),
    )


def _cost_usd(remaining: Band, spending: Spending) -> Band | None:
    if spending.cost_usd is None or spending.usd_per_hour is None:
        return None
    return remaining.scaled(spending.usd_per_hour / SECONDS_PER_HOUR).plus(spending.cost_usd)


def _energy_kwh(remaining: Band, spending: Spending) -> Band | None:
    """Time and watts err independently."""
    watts = spending.watts
    if spending.energy_kwh is None or watts is None:
        return None
    by_time = remaining.scaled(watts.mid / JOULES_PER_KWH)
    by_watts = watts.scaled(remaining.mid / JOULES_PER_KWH)
    down = sqrt((by_time.mid - by_time.low) ** 2 + (by_watts.mid - by_watts.low) ** 2)
    up = sqrt((by_time.high - by_time.mid) ** 2 + (by_watts.high - by_watts.mid) ** 2)
    rest = Band(low=max(0.0, by_time.mid - down), mid=by_time.mid, high=by_time.mid + up, source=watts.source)
    return rest.plus(spending.energy_kwh)


def flat_forecast(the_forecast: Forecast, now_unix_seconds: float) -> dict[str, float]:
    """`forecast/<leaf>` with its edges; leaves as in the estimate. What is unknown is left out."""
    bands = {
        "step_seconds": the_forecast.step_seconds,
        "remaining_seconds": the_forecast.remaining_seconds,
        "wall_seconds": the_forecast.wall_seconds,
        "end_unix_seconds": the_forecast.remaining_seconds.plus(now_unix_seconds),
        "cost_usd": the_forecast.cost_usd,
        "energy_kwh": the_forecast.energy_kwh,
    }
    flat: dict[str, float] = {}
    for leaf, band in bands.items():
        if band is not None:
            flat |= {f"forecast/{leaf}": band.mid, f"forecast/{leaf}_low": band.low, f"forecast/{leaf}_high": band.high}
    return flat
