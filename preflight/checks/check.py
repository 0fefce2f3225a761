"""Judgements over a machine snapshot: declared against detected, data, disk, memory, versions. Each small and pure.

Only what changes the decision or a number is said. When the cards of the bill are not here, this computer is not the
one that will train, and nothing else about it matters.
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.checks.cards import judge_cards, missing_cards
from preflight.checks.extras import judge_packages, judge_start
from preflight.checks.facts import judge_facts
from preflight.estimate import Estimate, estimate
from preflight.machine.snapshot import Machine
from preflight.plan import RunPlan
from preflight.verdict.judge import Finding, Severity

_ORDER = (Severity.error, Severity.warning, Severity.info)


def check(plan: RunPlan, machine: Machine) -> tuple[Finding, ...]:
    """Every finding, the gravest first."""
    needs = estimate(plan)
    mismatch = missing_cards(plan, machine)
    found = [mismatch] if mismatch else [*_judge_here(plan, machine, needs)]
    found += [*judge_facts(plan, needs, is_here=mismatch is None), *judge_start(plan, is_here=mismatch is None)]
    return tuple(sorted(found, key=lambda finding: _ORDER.index(finding.severity)))


def _judge_here(plan: RunPlan, machine: Machine, needs: Estimate) -> Iterator[Finding]:
    # the bill of a machine that is elsewhere does not pay for these
    from preflight.checks.around import judge_around
    from preflight.checks.health import judge_health
    from preflight.checks.host import judge_host

    yield from judge_cards(plan, machine, needs)
    yield from judge_health(plan, machine)
    yield from judge_host(plan, machine, needs)
    yield from judge_around(plan, machine, needs)
    yield from judge_packages(plan, machine)
