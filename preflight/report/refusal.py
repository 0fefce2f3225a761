"""What is over, by how much, what is near, and the whole ladder: the tables of a no."""

from __future__ import annotations

from collections.abc import Iterator

from conf.choices import Show
from preflight.bill import Bill
from preflight.lowering.ladder import AS_ASKED, Step
from preflight.money import format_money
from preflight.plan import RunPlan
from preflight.report.words import LABEL, UNKNOWN, folded
from preflight.units import GIB, format_bytes, format_seconds
from preflight.verdict.judge import Change, Violation
from preflight.verdict.needs import BUDGET_WORDS, ROOM_BUDGETS, amount, path_of

INDENT = " " * LABEL
WORTH_SHOWING = 0.01  # of memory or time: a rung that saves less is left to `lowering.show=ladder`
OVER = "{budget:<12} {need:>10} {limit:>10} {by:>10}  {option}"
RUNG = "{setting:<26} {memory:>8} {saves:>9} {time:>10} {money:>8}  {answer}"  # never glued, however long
OFF = "* off: type it, or lowering.rungs= (model: lowering.allow_model=true)"


def violation_lines(bill: Bill, broken: tuple[Violation, ...]) -> list[str]:
    """Need, limit and by how much of each budget, then its nearest plan and its cures."""
    if not broken:
        return []
    head = OVER.format(budget="", need="need", limit="limit", by="too much", option="option")
    lines = [f"{'over':<{LABEL}}{head}", *(f"{INDENT}{_over(bill.plan, violation)}" for violation in broken)]
    everything = " ".join(change.pin for change in bill.verdict.would_help)  # told in a line of its own
    for violation in broken:
        lines += _why_and_how(violation, everything, several=len(broken) > 1)
    return lines


def _over(plan: RunPlan, violation: Violation) -> str:
    budget, need, limit = violation.budget, violation.need, violation.limit
    value = {"memory": f"{plan.budget.max_memory_fraction:g}", "deadline": f"{plan.budget.deadline}"[:16]}
    shown = value.get(budget, f"{limit / GIB if budget in ROOM_BUDGETS else limit:g}")
    return OVER.format(
        budget=BUDGET_WORDS[budget],
        need=UNKNOWN if need is None else amount(budget, need),
        limit=amount(budget, limit),
        by=UNKNOWN if need is None else amount(budget, need - limit),
        option=f"{path_of(budget).removeprefix('budget.')}={shown}",
    ).rstrip()


def _why_and_how(violation: Violation, everything: str, *, several: bool) -> Iterator[str]:
    """Why no smaller pass helps and what is unknown are worth words; the numbers stand in the table."""
    of = f"{BUDGET_WORDS[violation.budget]}: " if several else ""
    if violation.budget == "memory" or violation.need is None:
        yield folded("  why", f"{of}{violation.message}")
    near = " ".join(change.pin for change in violation.nearest)
    if near and near != everything and not violation.fix.startswith(near):
        yield folded("  near", f"{of}{near}   ({changes_in_short(violation.nearest)})")
    if violation.fix:
        yield folded("  fix", f"{of}{violation.fix}")


def changes_in_short(changes: tuple[Change, ...]) -> str:
    """`trainer.precision fp32 -> bf16, ...`."""
    return ", ".join(f"{change.field} {change.old} -> {change.new}" for change in changes)


def ladder_lines(bill: Bill) -> list[str]:
    """Every rung with what it saves and comes to; with a refusal only those that save something that is over."""
    steps = [step for step in bill.ladder if bill.plan.lowering.show is Show.ladder or _matters(step, bill)]
    if len(steps) < 2:
        return []
    head = RUNG.format(setting="", memory="memory", saves="saves", time="time", money="money", answer="yes?")
    lines = [f"{'ladder':<{LABEL}}{head}", *(f"{INDENT}{_rung(step, bill.plan)}" for step in steps)]
    return lines if all(step.is_on for step in steps) else [*lines, f"{INDENT}{OFF}"]


def _matters(step: Step, bill: Bill) -> bool:
    """To a budget that is over; what was asked for and what would be a yes always do."""
    if step.rung == AS_ASKED or not step.broken:
        return True
    broken = {violation.budget for violation in bill.verdict.violations}
    saves_memory = step.saved_memory_bytes > WORTH_SHOWING * step.memory_bytes
    seconds = step.wall_seconds.mid if step.wall_seconds is not None else 0.0
    saves_time = (step.saved_seconds or 0.0) > WORTH_SHOWING * seconds
    return (saves_memory and bool(broken & ROOM_BUDGETS)) or (saves_time and bool(broken - ROOM_BUDGETS))


def _rung(step: Step, plan: RunPlan) -> str:
    what = step.setting.removeprefix("trainer.").removeprefix("activation_") or step.rung
    return RUNG.format(
        setting=what if step.is_on else f"{what} *",
        memory=format_bytes(step.memory_bytes),
        saves=_saves(step),
        time=UNKNOWN if step.wall_seconds is None else format_seconds(step.wall_seconds.mid),
        money=UNKNOWN if step.cost_usd is None else format_money(step.cost_usd.mid, plan.budget.money),
        answer="no" if step.broken else "yes",
    )


def _saves(step: Step) -> str:
    """Memory, or time where memory stays."""
    if step.rung == AS_ASKED:
        return ""
    if abs(step.saved_memory_bytes) >= WORTH_SHOWING * step.memory_bytes:
        sign = "" if step.saved_memory_bytes > 0 else "+"
        return sign + format_bytes(abs(step.saved_memory_bytes))
    if step.saved_seconds is not None and step.wall_seconds is not None:
        fraction = step.saved_seconds / (step.wall_seconds.mid + step.saved_seconds)
        return f"{fraction:.0%} time" if fraction > WORTH_SHOWING else ""
    return ""
