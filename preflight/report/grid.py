"""A grid of bills (`-m`): one line a job, under one header."""

from __future__ import annotations

from preflight.bill import Bill
from preflight.errors import ConfigError, PreflightError
from preflight.money import format_money
from preflight.report.text import DECISION_WORDS, machine_mismatch
from preflight.report.words import UNKNOWN
from preflight.units import format_bytes, format_seconds
from preflight.verdict.judge import Decision

LAYOUT = "{model:<11} {hw:<10} {verdict:<11} {batch:>6} {memory:>15} {time:>9} {money:>7}"


def grid_header() -> str:
    """The columns; memory is of one rank, held against what may be used."""
    return LAYOUT.format(
        model="model", hw="hw", verdict="verdict", batch="batch", memory="memory", time="time", money="money"
    )


def grid_row(bill: Bill) -> str:
    """The answer of one job."""
    plan, estimate = bill.plan, bill.estimate
    memory = estimate.memory
    limit = UNKNOWN if memory.usable_bytes is None else format_bytes(memory.usable_bytes)
    wall, cost = estimate.wall.seconds, estimate.cost.cost_usd
    return LAYOUT.format(
        model=plan.model.name,
        hw=plan.hw.declared,
        verdict=_verdict(bill),
        batch=f"{plan.trainer.micro_batch_size}x{plan.trainer.grad_accum_steps}",
        memory=f"{format_bytes(memory.device.mid).removesuffix(' GiB')} / {limit}",
        time=UNKNOWN if wall is None else format_seconds(wall.mid),
        money=UNKNOWN if cost is None else format_money(cost.mid, plan.budget.money),
    )


def grid_error_row(job: str, error: PreflightError) -> str:
    """A job that has no bill: its first problem with the cure; what varies is not named twice."""
    lines = str(error).splitlines() or [type(error).__name__]
    what, fix = lines[0], next((line.strip() for line in lines[1:2]), "")
    if isinstance(error, ConfigError) and error.problems:
        first = error.problems[0]
        given = f"{first.path}={first.value}"
        what = first.message if given in job.split() or not first.path else f"{given}: {first.message}"
        fix = f"To fix: {first.fix}" if first.fix else ""
    n_more = len(error.problems) - 1 if isinstance(error, ConfigError) else 0
    return (
        f"{job}: {what}"
        + (f"{'' if what.endswith('?') else '.'} {fix}" if fix else "")
        + (f" (and {n_more} more)" if n_more > 0 else "")
    )


def _verdict(bill: Bill) -> str:
    decision = bill.verdict.decision
    if decision is Decision.refuse:
        return "NO " + bill.verdict.violations[0].budget.removesuffix("_usd").removesuffix("_kwh")
    return "GO on paper" if decision is Decision.go and machine_mismatch(bill) else DECISION_WORDS[decision]
