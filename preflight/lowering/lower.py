"""The lowerings - batch, precision, model, and the rungs between them that are switched on - and the one raising.

A plan that fits is left alone. Else the least lowering that keeps every budget is taken (`preflight.lowering.search`),
among the rungs that configuration and consent allow; `tokens_per_step`, the learning rate, the data and the vocabulary
stay. When there is none, the answer is no, with what would help.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from conf.choices import PolicyChoice
from preflight.cost import estimate_cost
from preflight.duration import estimate_wall
from preflight.estimate import Estimate, estimate
from preflight.hw_plan import HwPlan
from preflight.lowering.levels import BATCH, EVERY_RUNG, MODEL
from preflight.lowering.raising import Faster, faster_batch, raised
from preflight.lowering.rungs import changes_between
from preflight.lowering.search import Search
from preflight.memory.peak import estimate_memory
from preflight.plan import RunPlan, valid_micro_batch_sizes
from preflight.verdict.fitting import at_micro_batch_size, fits_memory, largest_fitting
from preflight.verdict.judge import Change, Fitting, Violation, violations
from preflight.verdict.needs import BUDGET_WORDS, broken_budgets
from preflight.worth import estimate_worth

EVERYTHING = frozenset(EVERY_RUNG)
EVERY_BUDGET = frozenset(BUDGET_WORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """The plan to run, what changed, and what still stands in the way (empty: go)."""

    plan: RunPlan
    estimate: Estimate
    asked_estimate: Estimate
    changes: tuple[Change, ...]
    violations: tuple[Violation, ...]  # of the plan as asked when nothing helps
    would_help: tuple[Change, ...]  # what policy or consent forbids but would make it a yes
    faster: Faster | None = None  # a larger batch that was not asked for


def lower(plan: RunPlan) -> Lowered:
    """A plan that fits comes back untouched, unless it asks for a larger batch."""
    asked = estimate(plan)
    broken = broken_budgets(plan, asked)
    untouched = Lowered(plan=plan, estimate=asked, asked_estimate=asked, changes=(), violations=(), would_help=())
    if not broken:
        return _with_a_larger_batch(untouched, plan)
    search = Search(plan)
    if plan.lowering.policy is PolicyChoice.auto:
        found = search.first(allowed_rungs(plan), EVERY_BUDGET)
        if found is not None:
            changes = changes_between(plan, asked, found.plan, found.estimate, broken)
            lowered = replace(untouched, plan=found.plan, estimate=found.estimate, changes=changes)
            return _with_a_larger_batch(lowered, plan)
    if plan.lowering.policy is PolicyChoice.off:
        return replace(untouched, violations=violations(plan, asked))
    return replace(
        untouched,
        violations=violations(plan, asked, _fitting(search), lambda budget: _nearest(search, asked, {budget})),
        would_help=_nearest(search, asked, EVERY_BUDGET),
    )


def settle(plan: RunPlan, machines: Iterable[HwPlan]) -> Iterator[tuple[RunPlan, Estimate, tuple[str, ...]]]:
    """`lower` without its words, for one machine from many providers: what would run, and the budgets it still breaks.

    An offer changes money and energy, spot ones the time, so nothing else is worked out twice.
    """
    asked = plan, estimate(plan)
    others: list[tuple[RunPlan, Estimate]] | None = None  # the lowerings, worked out when one is needed
    for hw in machines:
        here = _from_provider(*asked, hw)
        broken = broken_budgets(*here)
        if broken and plan.lowering.policy is PolicyChoice.auto:
            if others is None:
                candidates = Search(plan).candidates(allowed_rungs(plan))
                others = [(one.plan, one.estimate) for one in candidates if one.plan != plan]
            lowered = [_from_provider(*other, hw) for other in others]
            fallback = here if fits_memory(here[1].memory) or not lowered else lowered[0]
            here = next((one for one in lowered if not broken_budgets(*one)), fallback)
            broken = broken_budgets(*here)
        yield *here, broken


def _from_provider(plan: RunPlan, worked_out: Estimate, hw: HwPlan) -> tuple[RunPlan, Estimate]:
    elsewhere = replace(plan, hw=hw)
    wall = worked_out.wall
    if hw.offer.interruptions != plan.hw.offer.interruptions:  # restarts take time
        wall = estimate_wall(elsewhere, worked_out.step, worked_out.memory.checkpoint_bytes)
    cost = estimate_cost(elsewhere, wall)
    worth = estimate_worth(elsewhere, worked_out.n_params, wall, cost, worked_out.value)
    return elsewhere, replace(worked_out, wall=wall, cost=cost, worth=worth)


def allowed_rungs(plan: RunPlan) -> frozenset[str]:
    """Those of `lowering.rungs` that `lowering.keep` leaves, and the model only with consent."""
    consented = set(plan.lowering.rungs) if plan.lowering.allow_model else set(plan.lowering.rungs) - {MODEL}
    return frozenset(consented - set(plan.lowering.keep))


def largest_micro_batch(plan: RunPlan) -> int | None:
    """The largest one that fits in memory and keeps the global batch; None when not even 1 does or nobody knows."""
    if estimate_memory(plan).usable_bytes is None:
        return None
    return largest_fitting(plan, valid_micro_batch_sizes(plan.trainer, plan.hw.world_size))


def _with_a_larger_batch(found: Lowered, asked: RunPlan) -> Lowered:
    """Offered, or applied with `lowering.raise_batch=true`; a batch that is kept is neither."""
    if BATCH in found.plan.lowering.keep:
        return found
    faster = faster_batch(found.plan, found.estimate)
    if faster is None or not found.plan.lowering.raise_batch:
        return replace(found, faster=faster)
    others = tuple(change for change in found.changes if change.rung != BATCH)
    change = raised(asked, faster)
    return replace(found, plan=faster.plan, estimate=faster.estimate, changes=(*others, change))


def _fitting(search: Search) -> Fitting:
    """The plan that would run if only memory counted: fewer tokens and more hours are worked out for it.

    Where no allowed rung cures the memory it is the one that memory's own fix makes, so that the fixes work together.
    """
    plan = search.plan
    rungs = allowed_rungs(plan) if plan.lowering.policy is PolicyChoice.auto else frozenset[str]()
    allowed = next(search.candidates(rungs), None)
    found = allowed or search.first(EVERYTHING, frozenset({"memory"}))
    fitting = plan if found is None else found.plan
    is_batch_alone = fitting == at_micro_batch_size(plan, fitting.trainer.micro_batch_size)
    return Fitting(plan=fitting, by_itself=allowed is not None or is_batch_alone)


def _nearest(search: Search, asked: Estimate, budgets: Iterable[str]) -> tuple[Change, ...]:
    """The least lowering if everything were allowed, each change with the override that makes it."""
    found = search.first(EVERYTHING, frozenset(budgets))
    if found is None:
        return ()
    broken = [budget for budget in broken_budgets(search.plan, asked) if budget in budgets]
    changes = changes_between(search.plan, asked, found.plan, found.estimate, broken)
    return tuple(replace(change, pin=_override(search.plan, change)) for change in changes)


def _override(plan: RunPlan, change: Change) -> str:
    if change.rung != MODEL:
        return f"{change.field}={change.new}"
    # model=NAME would also take that model's recipe: more or fewer tokens than were asked for.
    overrides = ["lowering.allow_model=true"]
    if plan.lowering.policy is not PolicyChoice.auto:
        overrides.insert(0, "lowering.policy=auto")
    if MODEL not in plan.lowering.rungs:
        overrides.append(f"lowering.rungs=[{','.join([*plan.lowering.rungs, MODEL])}]")
    if MODEL in plan.lowering.keep:
        overrides.append(f"lowering.keep=[{','.join(rung for rung in plan.lowering.keep if rung != MODEL)}]")
    return " ".join(overrides)
