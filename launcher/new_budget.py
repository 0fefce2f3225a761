"""A run that goes on within another budget: `resume=RUN_DIR budget.max_hours=48`. Nothing else of its plan changes.

The plan that runs is judged as it stands: the lowerings it has had stay, and no more are made, since weights and
optimizer of the first steps are there already.
"""

from __future__ import annotations

import json
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
from preflight.verdict.judge import Finding

GROUP = "budget."
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
