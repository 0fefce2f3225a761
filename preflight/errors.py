"""What can go wrong, and the exit code that each kind of trouble has.

PreflightError
|- ConfigError        2  the configuration or the data; carries *all* problems
|- OverBudget         3  refused
|- WrongMachine       4  the machine is not what `hw` says
`- TrainingFailed     5
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """Promised by `python launch.py`."""

    OK = 0
    CONFIG = 2
    OVER_BUDGET = 3
    WRONG_MACHINE = 4
    TRAINING_FAILED = 5
    STOPPED_AT_BUDGET = 6
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One fault of the configuration, with the override that cures it."""

    path: str  # dotted config path, "" when none fits
    value: str  # what was given
    message: str  # what is wrong, with the limit
    fix: str  # an override or a command that works

    def __str__(self) -> str:
        head = f"{self.path}={self.value}: " if self.path else ""
        return f"{head}{self.message}" + (f"\n  To fix: {self.fix}" if self.fix else "")


class PreflightError(Exception):
    """Anything the user should read instead of a traceback."""

    exit_code = ExitCode.TRAINING_FAILED


class ConfigError(PreflightError):
    """The configuration or the data is wrong; all problems at once."""

    exit_code = ExitCode.CONFIG

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class WrongMachine(PreflightError):
    """What was declared is not here."""

    exit_code = ExitCode.WRONG_MACHINE


class TrainingFailed(PreflightError):
    """A rank failed; the message names the first one and its reason."""
