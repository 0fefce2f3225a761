"""Why may a run end between two steps? Each rank has a view; the ranks vote, and all stop after the same step."""

from __future__ import annotations

from preflight.errors import ExitCode
from trainers.signals import AGENT_KILLED, LAUNCHER_KILLED

OVER_BUDGET = "budget"  # `trainers.guard` judges it
OVER_TIME = "time limit"  # of the machine
EXIT_CODES = {
    "": ExitCode.OK,
    OVER_BUDGET: ExitCode.STOPPED_AT_BUDGET,
    OVER_TIME: ExitCode.STOPPED_AT_BUDGET,
    "SIGUSR1": ExitCode.TERMINATED,  # Slurm's usual warning before the end
    "SIGHUP": ExitCode.TERMINATED,
    "SIGTERM": ExitCode.TERMINATED,
    "SIGINT": ExitCode.INTERRUPTED,
    LAUNCHER_KILLED: ExitCode.TERMINATED,
    AGENT_KILLED: ExitCode.TRAINING_FAILED,
}
REASONS = tuple(EXIT_CODES)  # ranks vote by index, the largest wins
