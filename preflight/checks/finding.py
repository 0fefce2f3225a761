"""Findings in one line each."""

from __future__ import annotations

from preflight.errors import ExitCode
from preflight.verdict.judge import Finding, Severity


def machine_error(check: str, message: str, fix: str) -> Finding:
    """A real run stops: this machine cannot carry it."""
    return Finding(check=check, severity=Severity.error, message=message, fix=fix, exit_code=ExitCode.WRONG_MACHINE)


def warning(check: str, message: str, fix: str) -> Finding:
    """It goes on, and the user should know."""
    return Finding(check=check, severity=Severity.warning, message=message, fix=fix)


def note(check: str, message: str, fix: str) -> Finding:
    """For `report=full`."""
    return Finding(check=check, severity=Severity.info, message=message, fix=fix)
