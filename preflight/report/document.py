"""The bill as one JSON document: names are added, never renamed; null is unknown; every number is finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from preflight.band import Band
from preflight.bill import Bill
from preflight.errors import ExitCode, Problem
from preflight.estimate import Estimate
from preflight.plan import RunPlan
from preflight.planfile import SCHEMA_VERSION, to_jsonable

Document = dict[str, Any]


def bill_document(bill: Bill) -> Document:
    """`report=json`."""
    verdict = to_jsonable(bill.verdict)
    document = {
        "schema_version": SCHEMA_VERSION,
        "plan": _plan(bill.plan, bill.estimate),
        "estimate": _estimate(bill.estimate),
        "asked": None if bill.asked_estimate is None else _estimate(bill.asked_estimate),
        "asked_plan": None
        if bill.asked_plan is None or bill.asked_estimate is None
        else _plan(bill.asked_plan, bill.asked_estimate),
        "offer": to_jsonable(bill.plan.hw.offer),
        "calibration": to_jsonable(bill.plan.calibration),
        "largest_micro_batch": bill.largest_micro_batch,
        "faster_batch": None
        if bill.faster is None
        else {
            "micro_batch_size": bill.faster.plan.trainer.micro_batch_size,
            "saved_fraction": bill.faster.saved_fraction,
        },
        "ladder": to_jsonable(list(bill.ladder)),
        "exit_code": int(bill.exit_code),
        "verdict": verdict,
    }
    finite: Document = _finite(document)
    return finite


def error_document(exit_code: ExitCode, problems: Sequence[Problem]) -> Document:
    """The answer when there is no bill: the same schema version and exit code, and every problem."""
    return {"schema_version": SCHEMA_VERSION, "exit_code": int(exit_code), "problems": to_jsonable(list(problems))}


def _plan(plan: RunPlan, estimate: Estimate) -> Document:
    """The frozen plan with what follows from it; `hw.card` is its name, its facts stand in `hw.card_facts`."""
    document: Document = to_jsonable(plan)
    document["model"] |= {"n_params": estimate.n_params}
    document["trainer"] |= {"total_tokens": plan.trainer.total_tokens}
    hw = document["hw"]
    hw |= {"card": plan.hw.card.name, "card_facts": hw["card"], "world_size": plan.hw.world_size}
    return document


def _estimate(estimate: Estimate) -> Document:
    memory, step, wall, cost, value = estimate.memory, estimate.step, estimate.wall, estimate.cost, estimate.value
    worth = estimate.worth
    return {
        "memory": {
            "allocated_bytes": _band(memory.allocated),
            "reserved_bytes": _band(memory.reserved),
            "device_bytes": _band(memory.device),
            "terms_bytes": dict(memory.terms_bytes),
            "phases_bytes": dict(memory.phases_bytes),
            "phase": memory.phase,
            "card_bytes": memory.card_bytes,
            "usable_bytes": memory.usable_bytes,
        },
        "step_seconds": _band(step.seconds),
        "step_terms_seconds": dict(step.terms_seconds),
        "raw_step_seconds": step.raw_seconds,
        "flops_per_step": step.flops_per_step,
        "peak_flops_per_second": step.peak_flops_per_second,
        "tokens_per_second": _band(step.tokens_per_second),
        "mfu": step.mfu,
        "wall_seconds": _band(wall.seconds),
        "wall_terms_seconds": dict(wall.terms_seconds),
        "cost_usd": _band(cost.cost_usd),
        "energy_kwh": _band(cost.energy_kwh),
        "co2_kg": _band(cost.co2_kg),
        "rates": to_jsonable(cost.rates),
        "alternative": {"text": cost.alternative, "cost_usd": cost.alternative_usd} if cost.alternative else None,
        "checkpoint_bytes": memory.checkpoint_bytes,
        "disk_bytes": estimate.disk_bytes,
        "host_memory_bytes": memory.host_memory_bytes,
        "value": {
            "tokens_per_param": value.tokens_per_param,
            "n_epochs": value.n_epochs,
            "expected_loss": _band(value.expected_loss),
            "expected_loss_at_three_quarters": value.expected_loss_at_three_quarters,
            "compute_optimal_tokens": value.compute_optimal_tokens,
            "last_quarter_usd": worth.last_quarter_usd,
            "last_quarter_loss": worth.last_quarter_loss,
            "budget_tokens": worth.budget_tokens,
            "budget_optimal_params": worth.optimal_params,
            "budget_optimal_tokens": worth.optimal_tokens,
        },
    }


def _band(band: Band | None) -> Document | None:
    return None if band is None else {"low": band.low, "mid": band.mid, "high": band.high, "source": band.source}


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: a number that is none is unknown."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
