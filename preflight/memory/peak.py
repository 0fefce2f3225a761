"""Peak memory of one rank, term by term and phase by phase: how much, how sure, and what it is made of.

allocated = max over phases of the tensors alive (`memory.phases`); reserved = allocated + allocator slack;
device = reserved + context + NCCL, or on a CPU the process's resident set. Bands: p10 and p90 of the parts, added up,
since their errors have common causes. The tensor sums hold within 1 % of a trace of the trainer's own code in eager
mode; Inductor decides for itself what it keeps, so compiled plans have a wider band until runs have been measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from conf.choices import TrackingBackend
from preflight.band import Band
from preflight.hw_plan import CardKind
from preflight.memory.device import (
    Edges,
    base_bytes,
    communication_bytes,
    cublas_workspace_bytes,
    heap_slack_bytes,
    slack_bytes,
)
from preflight.memory.phases import TOKEN_TERMS, Phases, phases_of, terms_of
from preflight.memory.workload import Workload, workload_of
from preflight.plan import RunPlan
from preflight.units import GIB, format_runs

# Ratio of what scales with tokens to the formula, at the low and the high edge.
EAGER_FACTORS = (0.97, 1.04)  # trace: within 1 %; public eager runs: within 3 %
COMPILED_FACTORS = (0.85, 1.15)  # Inductor's choices differ by version
UNIFIED_FACTORS = (0.7, 1.5)  # mps: never measured by us
HOST_BYTES_PER_RANK = 2 * GIB  # python, torch, CUDA's host side, pinned buffers

# What `preflight.calibration.calibrate` splits a measured peak by: base + fixed + factor x (token terms + slack).
BASE_TERMS = ("context", "process")
SCALING_TERMS = (*TOKEN_TERMS, "allocator_slack")
CALIBRATED_BY = ("activation_bytes", "base_memory_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """One rank's peak. On cpu: tensors, the same, and the peak resident set of the training process."""

    allocated: Band  # bytes, torch.cuda.max_memory_allocated
    reserved: Band  # bytes, torch.cuda.max_memory_reserved
    device: Band  # bytes, what the device (or the process table) shows; this is what must fit
    terms_bytes: Mapping[str, int]  # of the peak phase; they sum to device.mid
    phases_bytes: Mapping[str, int]  # allocated, by phase
    phase: str  # the phase that has the peak
    card_bytes: int | None  # what one rank's device has in total; None: unknown
    usable_bytes: int | None  # card_bytes x budget.max_memory_fraction (cpu: shared by the ranks of a node)
    checkpoint_bytes: int  # one checkpoint on disk
    host_memory_bytes: int  # resident memory of all ranks of one node


def estimate_memory(plan: RunPlan) -> MemoryEstimate:
    """Peak over the phases of a step, an evaluation and a checkpoint."""
    return estimate_workload(plan, workload_of(plan))


def estimate_workload(plan: RunPlan, work: Workload) -> MemoryEstimate:
    """The same for code that is not our trainer's."""
    card = plan.hw.card
    phases = phases_of(work)
    low, mid, high = _token_factors(plan)
    workspace = cublas_workspace_bytes(card)
    phases_bytes = {name: int(total) + workspace for name, total in phases.totals(mid).items()}
    phase = max(phases_bytes, key=phases_bytes.__getitem__)
    tensors = terms_of(phases, phase, mid) | {"cublas_workspace": workspace}
    allocated_bytes = phases_bytes[phase] = sum(tensors.values())
    token_bytes = phases.token_bytes(phase)
    slack, base = _slack(plan, work, phases, phase, allocated_bytes), _base(plan)
    communication = communication_bytes(plan.hw)
    spread = ((low - mid) * token_bytes, 0, (high - mid) * token_bytes)
    source = _source(plan)
    allocated = _band(source, allocated_bytes, spread)
    card_bytes = _total_bytes(plan)
    device = _band(source, allocated_bytes, spread, slack, base, communication)
    outside = {
        "allocator_slack": slack[1],
        BASE_TERMS[card.kind is CardKind.cpu]: base[1],
        "nccl": communication[1],
    }
    return MemoryEstimate(
        allocated=allocated,
        reserved=allocated if card.kind is CardKind.cpu else _band(source, allocated_bytes, spread, slack),
        device=device,
        terms_bytes={name: n_bytes for name, n_bytes in (tensors | outside).items() if n_bytes},
        phases_bytes=phases_bytes,
        phase=phase,
        card_bytes=card_bytes,
        usable_bytes=_usable_bytes(plan, card_bytes),
        checkpoint_bytes=phases.checkpoint,
        host_memory_bytes=_host_bytes(plan, int(device.mid), phases.checkpoint),
    )


def _slack(plan: RunPlan, work: Workload, phases: Phases, phase: str, allocated_bytes: int) -> Edges:
    """Of the allocator, or of the C library's heap. Measured peaks hold it, so a calibrated factor scales it too."""
    factor = plan.calibration.factors.get("activation_bytes")
    if plan.hw.card.kind is CardKind.cpu:
        layer_bytes = int((factor.value if factor else 1.0) * phases.layer_activations)
        low, mid, high = heap_slack_bytes(layer_bytes, phases.layers_gradients, keeps_gradients=work.keeps_gradients)
    else:
        hole_bytes = phases.loss_hole if phase == "loss_backward" else 0
        low, mid, high = slack_bytes(
            allocated_bytes, hole_bytes, compiled=plan.trainer.compile, expandable=work.expandable_segments
        )
    return (low, mid, high) if factor is None else (mid, mid, mid)  # its spread is in the factor's


def _base(plan: RunPlan) -> Edges:
    """Of the process or the device, before there is a model."""
    factor = plan.calibration.factors.get("base_memory_bytes")
    if factor is not None:
        return factor.low, round(factor.value), factor.high
    return base_bytes(plan.hw.card.kind, has_wandb=plan.tracking.backend is TrackingBackend.wandb)


def _band(source: str, mid: int, *parts: Edges) -> Band:
    """`mid` and the parts, edge by edge."""
    return Band(
        low=mid + sum(part[0] for part in parts),
        mid=mid + sum(part[1] for part in parts),
        high=mid + sum(part[2] for part in parts),
        source=source,
    )


def _token_factors(plan: RunPlan) -> tuple[float, float, float]:
    """Low, mid, high of what grows with the micro-batch; the model's own share is known to the byte."""
    factor = plan.calibration.factors.get("activation_bytes")
    if factor is not None:
        return factor.low, factor.value, factor.high
    if plan.hw.card.kind is CardKind.mps:
        low, high = UNIFIED_FACTORS
    else:
        low, high = COMPILED_FACTORS if plan.trainer.compile else EAGER_FACTORS
    return low, 1.0, high


def _source(plan: RunPlan) -> str:
    factors = plan.calibration.factors
    n_runs = max((factors[name].n_runs for name in CALIBRATED_BY if name in factors), default=0)
    return f"calibrated ({format_runs(n_runs)})" if n_runs else "formula"


def _total_bytes(plan: RunPlan) -> int | None:
    if plan.hw.card.kind is CardKind.cpu:
        return plan.hw.host_memory_bytes or plan.hw.card.memory_bytes
    return plan.hw.card.memory_bytes


def _usable_bytes(plan: RunPlan, card_bytes: int | None) -> int | None:
    """A CPU's ranks share its memory; a card has one rank."""
    if card_bytes is None:
        return None
    n_sharing = plan.hw.n_gpus_per_node if plan.hw.card.kind is CardKind.cpu else 1
    return int(card_bytes * plan.budget.max_memory_fraction) // n_sharing


def _host_bytes(plan: RunPlan, device_bytes: int, checkpoint_bytes: int) -> int:
    """All ranks of a node, and the copy of a checkpoint that is written beside the training."""
    per_rank = device_bytes if plan.hw.card.kind is CardKind.cpu else HOST_BYTES_PER_RANK
    return plan.hw.n_gpus_per_node * per_rank + plan.trainer.save_beside * checkpoint_bytes
