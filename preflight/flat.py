"""One vocabulary: the estimate as flat `estimate/<leaf>` numbers whose leaves equal those of `actual/<leaf>`.

plan.json, metrics.jsonl, W&B and the ledger all hold these names; `preflight.actual.flat_actual` is the other side.
"""

from __future__ import annotations

from preflight.actual import EARLY_PEAKS, wall_leaf
from preflight.band import Band
from preflight.estimate import Estimate
from preflight.step_time.step import StepTimeEstimate

Number = float | int | None

# Leaves that one side alone has, and why; everything else pairs up.
ONLY_ESTIMATED = {
    "n_params": "counted from the shape, which the trainer builds to the letter",
    "checkpoint_bytes": "the size of a file is no measurement of a run",
    "disk_bytes": "of all that will be written, held against what is free beforehand",
    "host_memory_bytes": "of all processes of a node, held against what is free beforehand",
    "wall_restarts_seconds": "spot machines: what comes after an interruption is a segment of its own",
}
ONLY_MEASURED = {
    "base_memory_bytes": "a part of the peak, which calibration takes off; the estimate has it as a term",
    **dict.fromkeys(EARLY_PEAKS, "when the peak was reached; the estimate is of the whole run's"),
    "step_seconds_p90": "of single steps; the estimate's edges are of their median",
    "logging_seconds": "a part of the steps' time, wanted to be little",
    "energy_is_measured": "how the energy was found",
    "n_steps_done": "the plan says how many there shall be",
    "first_step": "of this segment",
    "is_out_of_memory": "how it ended",
    "n_skipped_steps": "fp16 only, and luck",
    "train_loss": "of one batch; the estimate is of held-out text",
}


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
    for term, band in wall.bands.items():
        leaves |= _edges(wall_leaf(term), band)
    return (
        leaves
        | _mfu(step)
        | {
            "n_params": estimate.n_params,
            "checkpoint_bytes": memory.checkpoint_bytes,
            "host_memory_bytes": memory.host_memory_bytes,
            "disk_bytes": estimate.disk_bytes,
        }
    )


def _mfu(step: StepTimeEstimate) -> dict[str, Number]:
    """As wide as the tokens a second: the FLOPs and the peak are known."""
    rate = step.tokens_per_second
    if step.mfu is None or rate is None:
        return {"mfu": step.mfu}
    return _edges("mfu", rate.scaled(step.mfu / rate.mid))


def _edges(leaf: str, band: Band | None) -> dict[str, Number]:
    if band is None:
        return {leaf: None}
    return {leaf: band.mid, f"{leaf}_low": band.low, f"{leaf}_high": band.high}
