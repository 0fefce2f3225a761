"""One vocabulary: the estimate as flat `estimate/<leaf>` numbers whose leaves equal those of `actual/<leaf>`.

plan.json, metrics.jsonl, W&B and the ledger all hold these names; `preflight.actual.flat_actual` is the other side.
"""

from __future__ import annotations

from preflight.actual import wall_leaf
from preflight.band import Band
from preflight.estimate import Estimate

Number = float | int | None


def flat_estimate(estimate: Estimate) -> dict[str, Number]:
    """`estimate/step_seconds`, and `_low` and `_high` where there is a band. None: unknown."""
    return {f"estimate/{leaf}": value for leaf, value in _leaves(estimate).items()}


def _leaves(estimate: Estimate) -> dict[str, Number]:
    memory, step, wall, cost, value = estimate.memory, estimate.step, estimate.wall, estimate.cost, estimate.value
    bands = {
        "peak_allocated_bytes": memory.allocated,
        "peak_reserved_bytes": memory.reserved,
        "peak_device_bytes": memory.device,
        "step_seconds": step.seconds,
        "tokens_per_second": step.tokens_per_second,
        "wall_seconds": wall.seconds,
        "cost_usd": cost.cost_usd,
        "energy_kwh": cost.energy_kwh,
        "co2_kg": cost.co2_kg,
        "val_loss": value.expected_loss,
    }
    leaves: dict[str, Number] = {}
    for leaf, band in bands.items():
        leaves |= _edges(leaf, band)
    leaves |= {wall_leaf(term): seconds for term, seconds in wall.terms_seconds.items()}
    return leaves | {
        "mfu": step.mfu,
        "n_params": estimate.n_params,
        "checkpoint_bytes": memory.checkpoint_bytes,
        "host_memory_bytes": memory.host_memory_bytes,
        "disk_bytes": estimate.disk_bytes,
    }


def _edges(leaf: str, band: Band | None) -> dict[str, Number]:
    if band is None:
        return {leaf: None}
    return {leaf: band.mid, f"{leaf}_low": band.low, f"{leaf}_high": band.high}
