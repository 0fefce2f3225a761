"""A run that goes on within another budget: `resume=RUN_DIR budget.max_hours=48`. Nothing else of its plan changes.

The plan that runs is judged as it stands: the lowerings it has had stay, and no more are made, since weights and
optimizer of the first steps are there already.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from conf.choices import PolicyChoice
from conf.schema import Config
from preflight import rundir
from preflight.bill import Bill
from preflight.errors import ConfigError, Problem
from preflight.plan import RunPlan
from preflight.planfile import read_json, write_json
from preflight.resolve.resolution import Resolution
from preflight.resolve.resolve import resolve_budget
from preflight.units import GIB
from preflight.verdict.judge import Finding, Violation
from preflight.verdict.needs import IN_BYTES, path_of
from preflight.verdict.remedies import rounded_up

GROUP = "budget."
DECIDED_OPTION = re.compile(r"\b(?:model|data|hw|trainer|lowering)(?:\.\w+)*=")
FIELDS = {  # of the plan, where they are not called like the option
    "deadline": ("deadline", "deadline_unix_seconds", "deadline_hours"),
    "max_disk_gib": ("max_disk_bytes",),
    "max_host_memory_gib": ("max_host_memory_bytes",),
    "currency": ("money",),
}


def budget_options(given: Iterable[str]) -> list[str]:
    """Those of the typed keys that name a budget, without the group."""
    return sorted(key.removeprefix(GROUP) for key in given if key.startswith(GROUP))


def plan_within(config: Config, folder: Path, options: Iterable[str]) -> RunPlan:
    """The plan of the folder with these limits from the configuration; ConfigError has all that is wrong with them."""
    resolution = Resolution()
    wanted = resolve_budget(config, datetime.now(UTC).isoformat(timespec="seconds"), resolution)
    if resolution.problems:
        raise ConfigError(resolution.problems)
    plan = read_json(RunPlan, folder / rundir.PLAN, "plan")
    names = [name for option in options for name in FIELDS.get(option, (option,))]
    budget = replace(plan.budget, **{name: getattr(wanted, name) for name in names})
    policy = PolicyChoice.refuse if plan.lowering.policy is PolicyChoice.auto else plan.lowering.policy
    return replace(plan, budget=budget, lowering=replace(plan.lowering, policy=policy, raise_batch=False))


def of_resumed(bill: Bill) -> Bill:
    """Without what a frozen plan does not take: its cures are limits."""
    verdict = bill.verdict
    limits = [replace(broken, fix=_limit_that_holds(broken, bill), nearest=()) for broken in verdict.violations]
    findings = [replace(f, fix="") if DECIDED_OPTION.search(f.fix) else f for f in verdict.findings]
    verdict = replace(verdict, violations=tuple(limits), findings=tuple(findings), would_help=())
    return replace(bill, verdict=verdict, faster=None, ladder=(), is_resumed=True)


def _limit_that_holds(broken: Violation, bill: Bill) -> str:
    """ "" where no limit does: the memory of the card is what it is."""
    budget, need = broken.budget, broken.need
    if budget == "deadline" or need is None:
        return f"{path_of(budget)}=null"
    if budget == "memory":
        fraction = rounded_up(need / (bill.estimate.memory.card_bytes or need), n_digits=3)
        return f"{path_of(budget)}={fraction:g}" if fraction <= 1.0 else ""
    return f"{path_of(budget)}={rounded_up(need / GIB if budget in IN_BYTES else need):.12g}"


def refuse_past_deadline(plan: RunPlan, how: str) -> None:
    """A frozen plan may be older than its deadline."""
    moment = plan.budget.deadline_unix_seconds
    if moment is not None and moment <= time.time():
        fix = f"{how} budget.deadline=null" if how.startswith("resume=") else "the same command without plan="
        problem = Problem(path="budget.deadline", value=str(plan.budget.deadline), message="has passed", fix=fix)
        raise ConfigError([problem])


def freeze(bill: Bill, findings: tuple[Finding, ...], folder: Path) -> None:
    """plan.json of the run from now on; the changes that its first launch made stay in it."""
    path = folder / rundir.PLAN
    document = rundir.plan_document(bill, findings) | {"changes": json.loads(path.read_text())["changes"]}
    write_json(document, path)
