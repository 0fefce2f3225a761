"""A grid of bills (`-m`): one line a job, under one header."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from preflight.bill import Bill
from preflight.errors import ConfigError, ExitCode, PreflightError
from preflight.money import format_money
from preflight.report.text import DECISION_WORDS, condition
from preflight.report.words import UNKNOWN
from preflight.units import SECONDS_PER_HOUR, format_bytes, format_seconds
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


CSV_COLUMNS = (
    "job", "exit_code", "verdict", "model", "hw", "micro_batch_size", "grad_accum_steps", "precision",
    "memory_mid_bytes", "memory_high_bytes", "memory_usable_bytes", "hours_low", "hours_mid", "hours_high",
    "cost_usd_low", "cost_usd_mid", "cost_usd_high", "energy_kwh_mid", "over", "changes", "problem",
)  # fmt: skip


def grid_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """All rows of the grid's JSON document with a header; an empty cell is unknown."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=CSV_COLUMNS, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(_flat(row) for row in rows)
    return text.getvalue()


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    problems = row.get("problems", ())
    cells = {"job": row["job"], "exit_code": row["exit_code"]}
    if "estimate" not in row:
        told = "; ".join(f"{p['path']}={p['value']}: {p['message']}" if p["path"] else p["message"] for p in problems)
        return cells | {"verdict": "error", "problem": told}
    plan, estimate, verdict = row["plan"], row["estimate"], row["verdict"]
    memory, trainer = estimate["memory"], plan["trainer"]
    return cells | {
        "verdict": verdict["decision"],
        "model": plan["model"]["name"],
        "hw": plan["hw"]["declared"],
        **{name: trainer[name] for name in ("micro_batch_size", "grad_accum_steps", "precision")},
        "memory_mid_bytes": memory["device_bytes"]["mid"],
        "memory_high_bytes": memory["device_bytes"]["high"],
        "memory_usable_bytes": memory["usable_bytes"],
        **_edges("hours", estimate["wall_seconds"], SECONDS_PER_HOUR),
        **_edges("cost_usd", estimate["cost_usd"], 1.0),
        "energy_kwh_mid": (estimate["energy_kwh"] or {}).get("mid"),
        "over": " ".join(violation["budget"] for violation in verdict["violations"]),
        "changes": "; ".join(f"{c['field']} {c['old']} -> {c['new']}" for c in verdict["changes"]),
    }


def _edges(name: str, band: Mapping[str, float] | None, unit: float) -> dict[str, float | None]:
    edges = ("low", "mid", "high")
    return {f"{name}_{edge}": None if band is None else band[edge] / unit for edge in edges}


def _verdict(bill: Bill) -> str:
    decision = bill.verdict.decision
    if decision is Decision.refuse:
        return "NO " + bill.verdict.violations[0].budget.removesuffix("_usd").removesuffix("_kwh")
    if bill.exit_code is ExitCode.CONFIG:
        return "NOT READY"
    return DECISION_WORDS[decision] + (condition(bill).lower() if decision is Decision.go else "")
