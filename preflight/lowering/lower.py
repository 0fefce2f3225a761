"""The three lowerings: batch, precision, model; the least that satisfies every budget.

The search is exact over the rungs. Candidates come in the order of how little they change - the model first, then the
precision, then the micro-batch - and the first one that keeps every budget wins; for each model and precision the
micro-batch is the largest that fits, so the batch goes back up when the precision drops. A smaller batch cures memory
only, so it is never taken for hours or money. `tokens_per_step`, the learning rate, the data and the vocabulary stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from conf.choices import PolicyChoice
from preflight.cost import estimate_cost
from preflight.estimate import Estimate, estimate
from preflight.hw_plan import Card, CardKind, HwPlan
from preflight.lowering.rungs import changes_between
from preflight.memory.peak import estimate_memory
from preflight.plan import ModelPlan, Precision, RunPlan, valid_micro_batch_sizes
from preflight.verdict.fitting import at_micro_batch_size, fits_memory, largest_fitting
from preflight.verdict.judge import Change, Violation, broken_budgets, violations

BATCH, PRECISION, MODEL = "batch", "precision", "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """The plan to run, what changed, and what still stands in the way (empty: go)."""

    plan: RunPlan
    estimate: Estimate
    asked_estimate: Estimate
    changes: tuple[Change, ...]
    violations: tuple[Violation, ...]  # of the plan as asked when nothing helps
    would_help: tuple[Change, ...]  # what policy or consent forbids but would make it a yes


def lower(plan: RunPlan) -> Lowered:
    """A plan that fits comes back untouched."""
    asked = estimate(plan)
    broken = broken_budgets(plan, asked)
    untouched = Lowered(plan=plan, estimate=asked, asked_estimate=asked, changes=(), violations=(), would_help=())
    if not broken:
        return untouched
    if plan.lowering.policy is PolicyChoice.auto:
        found = _least_lowering(plan, allowed_rungs(plan))
        if found is not None:
            changes = changes_between(plan, asked, *found, broken)
            return replace(untouched, plan=found[0], estimate=found[1], changes=changes)
    stands = violations(plan, asked, _fitting(plan))
    helps = _would_help(plan, asked, broken) if plan.lowering.policy is not PolicyChoice.off else ()
    return replace(untouched, violations=stands, would_help=helps)


def settle(plan: RunPlan, machines: Iterable[HwPlan]) -> Iterator[tuple[RunPlan, Estimate, tuple[str, ...]]]:
    """`lower` without its words, for one machine from many providers: what would run, and the budgets it still breaks.

    An offer changes money and energy only, so nothing else is worked out twice.
    """
    asked = plan, estimate(plan)
    others: list[tuple[RunPlan, Estimate]] | None = None  # the lowerings, worked out when one is needed
    for hw in machines:
        here = _from_provider(*asked, hw)
        broken = broken_budgets(*here)
        if broken and plan.lowering.policy is PolicyChoice.auto:
            if others is None:
                candidates = _candidates(plan, allowed_rungs(plan))
                others = [(candidate, estimate(candidate)) for candidate in candidates if candidate != plan]
            lowered = [_from_provider(*other, hw) for other in others]
            fallback = here if fits_memory(here[1].memory) or not lowered else lowered[0]
            here = next((one for one in lowered if not broken_budgets(*one)), fallback)
            broken = broken_budgets(*here)
        yield *here, broken


def _from_provider(plan: RunPlan, worked_out: Estimate, hw: HwPlan) -> tuple[RunPlan, Estimate]:
    elsewhere = replace(plan, hw=hw)
    return elsewhere, replace(worked_out, cost=estimate_cost(elsewhere, worked_out.wall))


def allowed_rungs(plan: RunPlan) -> frozenset[str]:
    """What `lowering.keep` leaves, and the model only with consent."""
    rungs = {BATCH, PRECISION, MODEL} if plan.lowering.allow_model else {BATCH, PRECISION}
    return frozenset(rungs - set(plan.lowering.keep))


def largest_micro_batch(plan: RunPlan) -> int | None:
    """The largest one that fits in memory and keeps the global batch; None when not even 1 does or nobody knows."""
    if estimate_memory(plan).usable_bytes is None:
        return None
    return largest_fitting(plan, valid_micro_batch_sizes(plan.trainer, plan.hw.world_size))


def lower_precisions(asked: Precision, card: Card) -> tuple[Precision, ...]:
    """fp32 -> tf32 (time only) -> bf16 where the hardware has it, else fp16 on tensor cores of the 7.x generation."""
    capability = card.compute_capability or 0.0
    chain = []
    if card.kind is CardKind.cuda and capability >= 8.0:  # TF32 tensor cores came with Ampere
        chain.append(Precision.tf32)
    if card.has_bf16:
        chain.append(Precision.bf16)
    elif card.kind is CardKind.cuda and 7.0 <= capability < 8.0:
        chain.append(Precision.fp16)
    order = (Precision.fp32, Precision.tf32, Precision.bf16, Precision.fp16)
    if asked in (Precision.bf16, Precision.fp16):
        return ()
    return tuple(precision for precision in chain if order.index(precision) > order.index(asked))


def _least_lowering(plan: RunPlan, rungs: frozenset[str]) -> tuple[RunPlan, Estimate] | None:
    for candidate in _candidates(plan, rungs):
        candidate_estimate = estimate(candidate)
        if not broken_budgets(candidate, candidate_estimate):
            return candidate, candidate_estimate
    return None


def _candidates(plan: RunPlan, rungs: frozenset[str]) -> Iterator[RunPlan]:
    """Least lowering first; one a model and precision, with the largest micro-batch that fits, up to the asked one."""
    asked_size = plan.trainer.micro_batch_size
    sizes = [asked_size]
    if BATCH in rungs:
        valid = valid_micro_batch_sizes(plan.trainer, plan.hw.world_size)
        sizes = [size for size in valid if size < asked_size] + [asked_size]
    for model in _models(plan, rungs):
        for precision in _precisions(plan, rungs):
            shaped = replace(plan, model=model, trainer=replace(plan.trainer, precision=precision))
            size = largest_fitting(shaped, sizes)
            if size is not None:
                yield at_micro_batch_size(shaped, size)


def _models(plan: RunPlan, rungs: frozenset[str]) -> tuple[ModelPlan, ...]:
    """The vocabulary belongs to the data: a smaller model keeps it."""
    smaller = plan.lowering.smaller_models if MODEL in rungs else ()
    return (plan.model, *(model for model in smaller if model.vocab_size == plan.model.vocab_size))


def _precisions(plan: RunPlan, rungs: frozenset[str]) -> tuple[Precision, ...]:
    asked = plan.trainer.precision
    return (asked, *lower_precisions(asked, plan.hw.card)) if PRECISION in rungs else (asked,)


def _fitting(plan: RunPlan) -> RunPlan:
    """The plan that would run if only memory counted: fewer tokens and more hours are worked out for it."""
    rungs = allowed_rungs(plan) if plan.lowering.policy is PolicyChoice.auto else frozenset[str]()
    return next(_candidates(plan, rungs), plan)


def _would_help(plan: RunPlan, asked: Estimate, broken: tuple[str, ...]) -> tuple[Change, ...]:
    """The least lowering if everything were allowed, each change with the override that makes it."""
    found = _least_lowering(plan, frozenset((BATCH, PRECISION, MODEL)))
    if found is None:
        return ()
    changes = changes_between(plan, asked, *found, broken)
    return tuple(replace(change, pin=_override(plan, change)) for change in changes)


def _override(plan: RunPlan, change: Change) -> str:
    if change.rung != MODEL:
        return f"{change.field}={change.new}"
    # model=NAME would also take that model's recipe: more or fewer tokens than were asked for.
    overrides = ["lowering.allow_model=true"]
    if plan.lowering.policy is not PolicyChoice.auto:
        overrides.insert(0, "lowering.policy=auto")
    if MODEL in plan.lowering.keep:
        overrides.append(f"lowering.keep=[{','.join(rung for rung in plan.lowering.keep if rung != MODEL)}]")
    return " ".join(overrides)
