"""Config + machine + catalog -> plan: every default and every `auto` is decided here, once, and all problems told at once."""

from __future__ import annotations

from conf.schema import Config
from preflight.machine import Machine
from preflight.plan import RunPlan


def resolve(config: Config, machine: Machine, *, command: str, created_at: str) -> RunPlan:
    """Raises ConfigError with all problems. Calibration is added afterwards by the caller."""
    raise NotImplementedError
