"""Why does a run take other than its bill said? The likeliest cause, judged from what was measured, in one clause.

First the term of the wall time that differs most is found; when it is the steps, what slows steps is looked for in the
order of how directly it was seen: the data, the card's clock, other processes; what is left is the bill itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from preflight.units import format_runs, format_seconds
from trainers.card_meters import CardState

MUCH_WAITING = 0.15  # of the steps' time, for data or for a processor
SLOW_CLOCK = 0.85  # of the highest
SMALL_SECONDS, SMALL_FRACTION = 2.0, 0.03  # a term of less, or less of the wall time, explains no other wall time
POWER_CAP = "power cap"  # usual in training; a cause only when the clock is low
NAMES = {
    "startup": "start-up", "compile": "compilation and first-time work", "data": "preparing data",
    "evaluations": "evaluations", "checkpoints": "checkpoints", "shutdown": "the end",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known at the moment."""

    bill_seconds: Mapping[str, float]  # wall-time terms of the whole run
    now_seconds: Mapping[str, float]  # the same as measured, the rest projected
    step_seconds: float
    bill_step_seconds: float | None
    n_calibration_runs: int
    is_warming_up: bool  # compiled, and steps still are far apart
    data_wait_fraction: float  # of the steps' time
    processor_wait_fraction: float | None  # the main thread was ready, and another had the processor
    card: CardState


def likely_cause(evidence: Evidence) -> str:
    """One clause."""
    excess = {
        term: seconds - evidence.bill_seconds[term]
        for term, seconds in evidence.now_seconds.items()
        if term in evidence.bill_seconds
    }
    is_slower = sum(excess.values()) > 0
    large = [term for term in excess if _is_large(evidence, term)]
    worst = max(large, key=lambda term: excess[term] if is_slower else -excess[term], default="steps")
    if worst not in ("steps", "data_wait"):
        now, billed = evidence.now_seconds[worst], evidence.bill_seconds[worst]
        return f"{NAMES[worst]}: {format_seconds(now)} instead of {format_seconds(billed)}"
    return (_what_slows_steps(evidence) if is_slower else "") or _wrong_bill(evidence)


def _is_large(evidence: Evidence, term: str) -> bool:
    """As billed or as it goes; the steps always are."""
    pairs = evidence.bill_seconds, evidence.now_seconds
    seconds, whole = max(pair[term] for pair in pairs), max(sum(pair.values()) for pair in pairs)
    return term in ("steps", "data_wait") or seconds >= max(SMALL_SECONDS, SMALL_FRACTION * whole)


def _what_slows_steps(evidence: Evidence) -> str:
    if evidence.is_warming_up:
        return "compilation is still warming up: steps are far apart"
    if evidence.data_wait_fraction > MUCH_WAITING:
        return f"waiting for data takes {evidence.data_wait_fraction:.0%} of the steps"
    return _throttled(evidence.card) or _others(evidence)


def _throttled(card: CardState) -> str:
    """A low clock with its reason, or a reason that is never normal."""
    if not card.clock_hertz or not card.max_clock_hertz:
        return ""
    is_slow = card.clock_hertz < SLOW_CLOCK * card.max_clock_hertz
    grave = [reason for reason in card.reasons if reason != POWER_CAP]
    if not grave and not (is_slow and card.reasons):
        return ""
    heat = "" if card.temperature_celsius is None else f", {card.temperature_celsius:.0f} C"
    why = " and ".join(grave or card.reasons) + heat
    now, most = card.clock_hertz / 1e6, card.max_clock_hertz / 1e6
    return f"the card's clock is held at {now:.0f} of {most:.0f} MHz ({why})"


def _others(evidence: Evidence) -> str:
    waits = evidence.processor_wait_fraction
    if evidence.card.n_other_processes:
        return f"{evidence.card.n_other_processes} other processes compute on the same card"
    if waits is not None and waits > MUCH_WAITING:
        return f"other processes had the processor {waits:.0%} of the time"
    return ""


def _wrong_bill(evidence: Evidence) -> str:
    """Nothing else was seen."""
    told = f"a step takes {format_seconds(evidence.step_seconds)}"
    if evidence.bill_step_seconds:
        told += f", the bill said {format_seconds(evidence.bill_step_seconds)}"
    n = evidence.n_calibration_runs
    basis = f"its calibration ({format_runs(n)}) does not fit this run" if n else "it was not calibrated"
    return f"{told}: {basis}, the next one will know"
