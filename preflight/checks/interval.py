"""How often is a checkpoint worth its time? What a failure loses against what saving costs, shown with its reason.

Young 1974 ("A first order approximation to the optimum checkpoint interval") and Daly 2006 ("A higher order estimate of
the optimum checkpoint interval for restart dumps"): sqrt(2 x seconds of saving x seconds between failures) - seconds of
saving. Failures: published interruptions of GPUs (conf/catalog/failures.csv), memory errors that no ECC catches, and
how often a spot machine is taken away. Two bounds besides: what one failure loses stays below a tenth of the time that
may be spent, and saving below a twentieth of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

from preflight import priors
from preflight.checks.finding import note, warning
from preflight.duration import checkpoint_seconds, save_seconds, saves_beside, write_seconds
from preflight.estimate import Estimate
from preflight.plan import RunPlan
from preflight.units import SECONDS_PER_HOUR, format_seconds
from preflight.verdict.judge import Finding

BUDGET_SHARE = 0.1  # of budget.max_hours, that one failure may lose
SAVING_SHARE = 0.05  # of the run, that saving may take
WASTE_TO_WARN = 0.02  # of the run, that the planned interval loses beyond the proposed one
SHORT_SECONDS = 600.0  # such a run is started again


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The interval that costs least, and what it rests on."""

    n_steps: int
    seconds: float
    save_seconds: float
    failure_seconds: float  # between two failures of any card or node
    risk: str
    bound: str  # what decided: "" the formula itself
    wasted_fraction: float  # what the planned interval loses more, of the run


def judge_interval(plan: RunPlan, needs: Estimate) -> Iterator[Finding]:
    """A note, or a warning where the planned interval loses much."""
    proposal = propose(plan, needs)
    if proposal is None or not plan.trainer.checkpoint_interval:
        return
    planned = plan.trainer.checkpoint_interval
    word = "one delays the steps by" if saves_beside(plan, needs.memory.checkpoint_bytes) else "one takes"
    message = (
        f"a checkpoint every {proposal.n_steps:,} steps ({format_seconds(proposal.seconds)}) costs least"
        f"{proposal.bound}: {word} {format_seconds(proposal.save_seconds)}, a failure is expected every "
        f"{format_seconds(proposal.failure_seconds)} ({proposal.risk}; Young, Daly); planned: {planned:,} steps"
    )
    fix = "" if proposal.n_steps == planned else f"trainer.checkpoint_interval={proposal.n_steps}"
    say = warning if proposal.wasted_fraction > WASTE_TO_WARN else note
    yield say("checkpoint.interval", message, fix)


def propose(plan: RunPlan, needs: Estimate) -> Proposal | None:
    """None: nobody knows how long a step takes, or the run is too short to matter."""
    step, wall = needs.step.seconds, needs.wall.seconds
    if step is None or wall is None or wall.mid < SHORT_SECONDS or step.mid <= 0:
        return None
    delay_seconds, least_seconds = _save_seconds(plan, needs, step.mid)
    per_hour, risk = _failures_per_hour(plan)
    failure_seconds = SECONDS_PER_HOUR / per_hour
    best = max(least_seconds, sqrt(2.0 * delay_seconds * failure_seconds) - delay_seconds)
    seconds, bound = _bounded(plan, best, delay_seconds)
    n_steps = max(1, round(seconds / step.mid))
    if n_steps >= plan.trainer.n_steps:
        n_steps, bound = plan.trainer.n_steps, " (the end of the run)"
    planned_seconds, seconds = plan.trainer.checkpoint_interval * step.mid, n_steps * step.mid
    waste = _waste(planned_seconds, delay_seconds, failure_seconds) - _waste(seconds, delay_seconds, failure_seconds)
    return Proposal(
        n_steps=n_steps,
        seconds=seconds,
        save_seconds=delay_seconds,
        failure_seconds=failure_seconds,
        risk=risk,
        bound=bound,
        wasted_fraction=waste if plan.trainer.checkpoint_interval else 0.0,
    )


def _save_seconds(plan: RunPlan, needs: Estimate, step_seconds: float) -> tuple[float, float]:
    """What a save delays the steps by, and the shortest interval that lets one end before the next: as calibrated."""
    n_bytes = needs.memory.checkpoint_bytes
    formula = checkpoint_seconds(plan, n_bytes, step_seconds)
    factor = needs.wall.terms_seconds.get("checkpoints", 0.0) / formula
    delay = max(1e-3, factor * save_seconds(plan, n_bytes))
    return delay, max(delay, factor * write_seconds(plan, n_bytes)) if saves_beside(plan, n_bytes) else delay


def _failures_per_hour(plan: RunPlan) -> tuple[float, str]:
    """Of all cards and nodes together, and in words what is counted."""
    n_ranks = plan.hw.world_size
    per_hour, words = n_ranks * priors.failures_per_gpu_hour("hardware"), [f"{n_ranks} x hardware"]
    if plan.hw.card.ecc is False:
        per_hour += n_ranks * priors.failures_per_gpu_hour("no_ecc")
        words.append("no ECC")
    spot = plan.hw.offer.interruptions
    if spot is not None:
        per_hour += plan.hw.n_nodes * spot.mid_per_hour
        words.append("spot")
    return per_hour, ", ".join(words)


def _bounded(plan: RunPlan, seconds: float, save_seconds: float) -> tuple[float, str]:
    hours = plan.budget.max_hours
    most = float("inf") if hours is None else BUDGET_SHARE * hours * SECONDS_PER_HOUR
    least = save_seconds / SAVING_SHARE
    if seconds < least:
        return least, f" with saving kept below {SAVING_SHARE:.0%} of the run"
    if seconds > most >= least:
        return most, f" with what one failure loses kept below {BUDGET_SHARE:.0%} of budget.max_hours"
    return seconds, ""


def _waste(interval_seconds: float, save_seconds: float, failure_seconds: float) -> float:
    """Of the run: saving, and half an interval for each failure."""
    return save_seconds / max(interval_seconds, save_seconds) + interval_seconds / 2.0 / failure_seconds
