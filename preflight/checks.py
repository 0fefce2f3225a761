"""Judgements over a machine snapshot: declared against detected, data, disk, memory, versions. Each small and pure."""

from __future__ import annotations

from preflight.machine import Machine
from preflight.plan import RunPlan
from preflight.verdict import Finding


def check(plan: RunPlan, machine: Machine) -> tuple[Finding, ...]:
    """Every finding, the gravest first."""
    raise NotImplementedError
