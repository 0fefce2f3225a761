"""The three lowerings: batch, precision, model; the least that satisfies every budget."""

from __future__ import annotations

from dataclasses import dataclass

from preflight.estimate import Estimate
from preflight.plan import RunPlan
from preflight.verdict import Change, Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """The plan to run, what changed, and what still stands in the way (empty: go)."""

    plan: RunPlan
    estimate: Estimate
    changes: tuple[Change, ...]
    violations: tuple[Violation, ...]  # of the plan as asked when nothing helps
    would_help: tuple[Change, ...]  # what policy or consent forbids but would make it a yes


def lower(plan: RunPlan) -> Lowered:
    """A plan that fits comes back untouched."""
    raise NotImplementedError


def largest_micro_batch(plan: RunPlan) -> int | None:
    """The largest micro-batch that fits in memory and keeps the global batch; None when not even 1 does."""
    raise NotImplementedError
