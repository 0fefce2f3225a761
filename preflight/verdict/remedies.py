"""What would turn a no into a yes: for each budget the overrides that work, with numbers that are worked out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from conf.choices import Optimizer, Parallel, PolicyChoice
from preflight.estimate import Estimate, estimate
from preflight.hw_plan import CardKind
from preflight.memory.peak import estimate_memory
from preflight.plan import Precision, RunPlan, valid_micro_batch_sizes
from preflight.sharing import can_share
from preflight.units import GIB, format_bytes, format_seconds
from preflight.verdict.fitting import at_micro_batch_size, largest_fitting, state_bytes, tokens_that_fit
from preflight.verdict.needs import Need, broken_budgets, host_memory_bytes, path_of

RENTED_EXAMPLE = "hw=4x4090"  # the cheapest step up from a processor or a laptop
RENTED_BYTES = 23.5 * GIB  # of one of its cards: what weights and states of a rank must stay below
WIDER = ((1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8))  # nodes and cards on each, as they are rented out

Fits = Callable[[RunPlan, Estimate], bool]


def one_of(remedies: list[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return " or ".join([", ".join(remedies[:-1]), remedies[-1]] if len(remedies) > 1 else remedies)


def rounded_up(value: float, n_digits: int = 2) -> float:
    """To two significant digits, never below `value`: a limit that a person would type and that holds."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - n_digits + 1)
    return float(f"{math.ceil(value / unit) * unit:.{n_digits + 1}g}")


def hours_remedy(
    fitting: RunPlan, budget: str, need: float, fits: Fits, given_with: str = "", *, is_model: bool = True
) -> str:
    """More hours or no deadline, the tokens that fit, the bill of a faster machine; all for the same plan.

    A smaller model of the family is told beside these (`Violation.nearest`); one of another kind is no answer.
    `is_model`: it is the model that was asked for.
    """
    more = "budget.deadline=null" if budget == "deadline" else f"budget.max_hours={rounded_up(need):.12g}"
    ways = _together([more, *_fewer_tokens(fitting, fits)], given_with)
    return one_of([*ways, *_faster_machine(fitting, fits, is_model=is_model)])


def spending_remedy(fitting: RunPlan, budget: str, need: float, fits: Fits, given_with: str = "") -> str:
    """More money or energy, or the tokens that fit."""
    ways = [f"budget.max_{budget}={rounded_up(need):.12g}", *_fewer_tokens(fitting, fits)]
    return one_of(_together(ways, given_with))


def _together(ways: list[str], given_with: str) -> list[str]:
    """What each of them is worked out with, said once."""
    each = "each " if len(ways) > 1 else ""
    return [*ways[:-1], f"{ways[-1]} ({each}with {given_with})"] if given_with else ways


def room_remedy(plan: RunPlan, worked_out: Estimate, need: Need) -> str:
    """Of disk and host memory: more of it, or fewer checkpoints, or smaller passes where ranks live in that memory."""
    remedies = [f"{path_of(need.budget)}={rounded_up((need.edge or 0.0) / GIB):.12g}"]
    if need.budget == "disk":
        n_kept = int(need.limit // max(1, worked_out.memory.checkpoint_bytes)) - 1
        remedies += [f"trainer.keep_checkpoints={n_kept}"] if n_kept >= 1 else []
    elif plan.hw.card.kind is CardKind.cpu:
        sizes = valid_micro_batch_sizes(plan.trainer, plan.hw.world_size)
        smaller = [size for size in sizes if size < plan.trainer.micro_batch_size]
        fits = [s for s in smaller if _host_bytes(at_micro_batch_size(plan, s)) <= need.limit]
        remedies += [f"trainer.micro_batch_size={fits[-1]}"] if fits else []
    return one_of(remedies)


def _host_bytes(plan: RunPlan) -> float:
    return host_memory_bytes(plan, estimate(plan))


def unknown_remedy(plan: RunPlan, estimate: Estimate, budget: str) -> str:
    """The number that is missing, or no limit."""
    missing = []
    if estimate.wall.seconds is None:
        missing.append("hw.card=custom with its hw.custom.* numbers")
    elif budget == "cost_usd" and not plan.hw.offer.owned:
        missing.append("hw.price_usd_per_hour=PRICE (of one node with all its cards)")
    else:
        if estimate.cost.rates.watts is None:
            missing.append("hw.watts=WATTS (of one node in training)")
        if budget == "cost_usd" and plan.hw.electricity.usd_per_kwh is None:
            missing.append("hw.electricity_usd_per_kwh=PRICE")
    return one_of([" and ".join(missing)] * bool(missing) + [f"budget.max_{budget}=null"])


def _fewer_tokens(fitting: RunPlan, fits: Fits) -> list[str]:
    """Offered, never applied; in the terms that the length of the run was given in."""
    tokens = tokens_that_fit(fitting, fits)
    if not tokens:
        return []
    if fitting.provenance.get("trainer.n_steps", "").startswith("given"):
        return [f"trainer.n_steps={tokens // fitting.trainer.tokens_per_step}"]
    return [f"trainer.total_tokens={tokens}"]


def _faster_machine(plan: RunPlan, fits: Fits, *, is_model: bool) -> list[str]:
    """A bill costs nothing: rented cards instead of a processor, more of the same cards where that is enough."""
    hw = plan.hw
    if hw.card.kind is not CardKind.cuda:
        is_small = is_model and state_bytes(plan) < RENTED_BYTES
        return [f"{RENTED_EXAMPLE} dry_run=true" if is_small else "action=compare"]
    for n_nodes, n_gpus in WIDER if is_model else ():
        if n_nodes >= hw.n_nodes and n_gpus >= hw.n_gpus_per_node and n_nodes * n_gpus > hw.world_size:
            wider = _on_more_cards(plan, n_gpus, n_nodes)
            if wider is not None and fits(wider, estimate(wider)):
                return [f"hw={f'{n_nodes}x' if n_nodes > 1 else ''}{n_gpus}x{hw.card.name} dry_run=true"]
    return []


def _on_more_cards(plan: RunPlan, n_gpus: int, n_nodes: int) -> RunPlan | None:
    """The same global batch over more ranks, each at the same price; None when it does not divide."""
    offer = plan.hw.offer
    if offer.usd_per_hour is not None:
        offer = replace(offer, usd_per_hour=offer.usd_per_hour * n_gpus / plan.hw.n_gpus_per_node)
    hw = replace(plan.hw, n_gpus_per_node=n_gpus, n_nodes=n_nodes, offer=offer)
    sizes = [s for s in valid_micro_batch_sizes(plan.trainer, hw.world_size) if s <= plan.trainer.micro_batch_size]
    return at_micro_batch_size(replace(plan, hw=hw), sizes[-1]) if sizes else None


def memory_message(plan: RunPlan, estimate: Estimate) -> str:
    """Path, value, need, limit; and when no batch could help, why."""
    memory = estimate.memory
    usable, states = memory.usable_bytes or 0, state_bytes(plan)
    allowed = f"{plan.hw.card.label} allows {format_bytes(usable)}"
    if memory.card_bytes is not None:
        allowed += f" ({format_bytes(memory.card_bytes)} x {plan.budget.max_memory_fraction:g})"
    if states > usable:
        optimizer = "Adam" if plan.trainer.optimizer is Optimizer.adamw else plan.trainer.optimizer.name
        ddp = plan.trainer.parallel is Parallel.ddp
        return (
            f"model={plan.model.name} needs {format_bytes(states)} per rank for weights, gradients and {optimizer} "
            f"alone ({states / estimate.n_params:.3g} bytes a parameter{_in_every_precision(plan)}); {allowed}. "
            "No micro-batch or precision helps"
            + (", nor do more cards under DDP: every rank holds all of it." if ddp else ".")
        )
    phase = memory.phase.replace("_", " ")
    text = (
        f"trainer.micro_batch_size={plan.trainer.micro_batch_size} needs up to {format_bytes(memory.device.high)} "
        f"per rank in {phase} (expected {format_bytes(memory.device.mid)}); {allowed}."
    )
    sizes = valid_micro_batch_sizes(plan.trainer, plan.hw.world_size)
    if not sizes or largest_fitting(plan, sizes) is not None:
        return text
    least = format_bytes(estimate_memory(at_micro_batch_size(plan, sizes[0])).device.high)
    return f"{text} Not even trainer.micro_batch_size={sizes[0]} fits: {least}."


def _in_every_precision(plan: RunPlan) -> str:
    return "" if plan.trainer.precision is Precision.bf16_pure else ", fp32 in every precision"


def _by_itself(plan: RunPlan) -> str:
    if plan.lowering.policy is not PolicyChoice.auto:
        return ", or let the launcher choose: lowering.policy=auto"
    return "" if "batch" in plan.lowering.keep else " (done by itself once the other budgets hold)"


def _once_all_hold(plan: RunPlan, estimate: Estimate, nearest: str) -> str:
    """Consent to a smaller model changes nothing while hours or money are over too."""
    several = len(broken_budgets(plan, estimate)) > 1
    return " (taken once the other budgets hold)" if several and "lowering.allow_model=true" in nearest else ""


def memory_remedy(plan: RunPlan, worked_out: Estimate, nearest: str, nearest_plan: RunPlan | None = None) -> str:
    """The largest micro-batch that fits; else the overrides of the nearest plan that does; else a larger card.

    Ways that are not alike in time say their own.
    """
    sizes = valid_micro_batch_sizes(plan.trainer, plan.hw.world_size)
    size = largest_fitting(plan, sizes)
    if size is not None:
        return f"trainer.micro_batch_size={size}{_by_itself(plan)}"
    if nearest:
        shared = _shared_out(plan)
        own = _own_time(nearest_plan) if shared and nearest_plan is not None else ""
        return one_of([nearest + own + _once_all_hold(plan, worked_out, nearest), *shared])
    if shared := _shared_out(plan):
        return one_of(shared)
    leanest = estimate_memory(at_micro_batch_size(plan, sizes[0])) if sizes else worked_out.memory
    card_bytes = leanest.device.high / plan.budget.max_memory_fraction
    return f"a card with at least {format_bytes(card_bytes)}: action=compare lists those that fit"


def _shared_out(plan: RunPlan) -> list[str]:
    """More of the same cards that share out weights, gradients and states; the fewest on which it fits."""
    hw = plan.hw
    asked = plan.trainer.parallel
    trainer = replace(plan.trainer, parallel=Parallel.zero3 if asked is Parallel.ddp else asked)
    if hw.card.kind is not CardKind.cuda or not can_share(trainer):
        return []
    for n_gpus in (2, 4, 8):
        is_wider = n_gpus > hw.n_gpus_per_node
        wider = _on_more_cards(replace(plan, trainer=trainer), n_gpus, hw.n_nodes) if is_wider else None
        sizes = [] if wider is None else valid_micro_batch_sizes(wider.trainer, wider.hw.world_size)
        size = largest_fitting(wider, [s for s in sizes if s <= trainer.micro_batch_size]) if wider else None
        if size is not None:
            nodes = f"{hw.n_nodes}x" if hw.n_nodes > 1 else ""
            wide = f"hw={nodes}{n_gpus}x{hw.card.name} trainer.parallel={trainer.parallel.name}"
            own = _own_time(at_micro_batch_size(wider, size)) if wider is not None else ""
            return [f"{wide} trainer.micro_batch_size={size} dry_run=true{own}"]
    return []


def _own_time(plan: RunPlan) -> str:
    """` (44.2 days)`. The price of another machine is another offer, which its own bill looks up."""
    seconds = estimate(plan).wall.seconds
    return "" if seconds is None else f" ({format_seconds(seconds.mid)})"
