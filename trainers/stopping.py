"""Why may a run end between two steps? Each rank has a view; the ranks vote, and all stop after the same step."""

from __future__ import annotations

from conf.choices import PolicyChoice
from preflight.errors import ExitCode
from preflight.units import SECONDS_PER_HOUR
from trainers.job import Job

OVER_BUDGET = "budget"
EXIT_CODES = {
    "": ExitCode.OK,
    OVER_BUDGET: ExitCode.STOPPED_AT_BUDGET,
    "SIGUSR1": ExitCode.TERMINATED,  # Slurm's usual warning before the end
    "SIGHUP": ExitCode.TERMINATED,
    "SIGTERM": ExitCode.TERMINATED,
    "SIGINT": ExitCode.INTERRUPTED,
}
REASONS = tuple(EXIT_CODES)  # ranks vote by index, the largest wins


def vote(job: Job, elapsed_seconds: float) -> int:
    """This rank's view, as an index of REASONS."""
    asked = job.stop.requested
    if asked:
        return REASONS.index(asked)
    return REASONS.index(OVER_BUDGET) if is_over_budget(job, elapsed_seconds) else 0


def is_over_budget(job: Job, elapsed_seconds: float) -> bool:
    """Hours or money are used up. A run that was launched over budget knowingly (policy off) is not stopped by it."""
    budget, hours = job.plan.budget, elapsed_seconds / SECONDS_PER_HOUR
    if job.plan.lowering.policy is PolicyChoice.off:
        return False
    if budget.max_hours is not None and hours > budget.max_hours:
        return True
    if budget.max_cost_usd is None or job.usd_per_hour is None:
        return False
    return hours * job.usd_per_hour > budget.max_cost_usd
