"""Peak memory of one rank, term by term and phase by phase: how much, how sure, and what it is made of.

allocated = max over phases of the tensors alive (`memory_phases`); reserved = allocated + allocator slack;
device = reserved + context + NCCL, or on a CPU the process's resident set. Bands: p10 and p90 of the parts, added
up, since their errors have common causes. The tensor sums hold within 3 % of a trace of the trainer's own code in eager mode;
Inductor decides for itself what it keeps, so compiled plans carry a wider band until runs have been measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from preflight.band import Band
from preflight.memory_device import (
    base_bytes,
    communication_bytes,
    cublas_workspace_bytes,
    slack_fixed,
    slack_fraction,
)
from preflight.memory_phases import TOKEN_TERMS, Terms, phase_terms
from preflight.memory_workload import workload_of
from preflight.params import count_params
from preflight.plan import CardKind, RunPlan
from preflight.units import GIB

EAGER_TOKEN_FACTORS = (0.96, 1.05)  # formula against trace and public eager runs
COMPILED_TOKEN_FACTORS = (0.85, 1.15)
UNIFIED_TOKEN_FACTORS = (0.7, 1.5)  # mps: never measured by us
CHECKPOINT_BYTES_PER_PARAM = 12  # fp32 weights and Adam's two moments
HOST_BYTES_PER_RANK = 2 * GIB  # python, torch, CUDA's host side, pinned buffers; compiled kernels' workers come on top


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
    kind = plan.hw.card.kind
    token_factor = plan.calibration.factors.get("activation_bytes")
    phases = phase_terms(workload_of(plan))
    if token_factor is not None:
        phases = {name: _scaled(terms, token_factor.value) for name, terms in phases.items()}
    workspace = cublas_workspace_bytes(plan.hw.card)
    phases_bytes = {name: sum(terms.values()) + workspace for name, terms in phases.items()}
    phase = max(phases_bytes, key=phases_bytes.__getitem__)
    terms, allocated_bytes = phases[phase], phases_bytes[phase]
    token_bytes = sum(terms.get(name, 0) for name in TOKEN_TERMS)
    allocated = _token_band(plan, allocated_bytes, token_bytes)
    reserved = _with_slack(plan, allocated)
    device = _with_base(plan, reserved)
    outside = int(device.mid) - int(reserved.mid)
    communication = int(communication_bytes(plan.hw)[1])
    terms = terms | {
        "cublas_workspace": workspace,
        "allocator_slack": int(reserved.mid) - allocated_bytes,
        "process" if kind is CardKind.cpu else "context": outside - communication,
        "nccl": communication,
    }
    card_bytes = _total_bytes(plan)
    n_ranks = plan.hw.n_gpus_per_node
    return MemoryEstimate(
        allocated=allocated,
        reserved=allocated if kind is CardKind.cpu else reserved,
        device=device,
        terms_bytes={name: n_bytes for name, n_bytes in terms.items() if n_bytes},
        phases_bytes=phases_bytes,
        phase=phase,
        card_bytes=card_bytes,
        usable_bytes=_usable_bytes(plan, card_bytes),
        checkpoint_bytes=CHECKPOINT_BYTES_PER_PARAM * count_params(plan.model, plan.trainer.sequence_length).total,
        host_memory_bytes=n_ranks * (int(device.mid) if kind is CardKind.cpu else HOST_BYTES_PER_RANK),
    )


def _scaled(terms: Terms, factor: float) -> Terms:
    return {name: round(n_bytes * factor) if name in TOKEN_TERMS else n_bytes for name, n_bytes in terms.items()}


def _source(plan: RunPlan, factor_name: str) -> str:
    factor = plan.calibration.factors.get(factor_name)
    return "formula" if factor is None else f"calibrated ({factor.n_runs} runs)"


def _token_band(plan: RunPlan, allocated_bytes: int, token_bytes: int) -> Band:
    """The model's own share is known to the byte; what grows with the micro-batch carries the uncertainty."""
    factor = plan.calibration.factors.get("activation_bytes")
    if factor is not None:
        low, high = factor.low / factor.value, factor.high / factor.value
    elif plan.hw.card.kind is CardKind.mps:
        low, high = UNIFIED_TOKEN_FACTORS
    else:
        low, high = COMPILED_TOKEN_FACTORS if plan.trainer.compile else EAGER_TOKEN_FACTORS
    return Band(
        low=allocated_bytes + token_bytes * (low - 1),
        mid=allocated_bytes,
        high=allocated_bytes + token_bytes * (high - 1),
        source=_source(plan, "activation_bytes"),
    )


def _with_slack(plan: RunPlan, allocated: Band) -> Band:
    """Plus what the allocator holds beyond the tensors; measured runs contain it already."""
    low, mid, high = slack_fraction(plan.hw.card.kind, plan.trainer.compile)
    low_fixed, mid_fixed, high_fixed = slack_fixed(plan.hw.card.kind)
    slack = int(mid * allocated.mid + mid_fixed)
    if "activation_bytes" in plan.calibration.factors:
        return allocated.plus(slack)
    return Band(
        low=allocated.low + int(low * allocated.mid + low_fixed),
        mid=allocated.mid + slack,
        high=allocated.high + int(high * allocated.mid + high_fixed),
        source=allocated.source,
    )


def _with_base(plan: RunPlan, reserved: Band) -> Band:
    """Plus context or process, plus NCCL."""
    low, mid, high = base_bytes(plan.hw.card.kind)
    factor = plan.calibration.factors.get("base_memory_bytes")
    if factor is not None:
        low, mid, high = factor.low, factor.value, factor.high
    low_nccl, mid_nccl, high_nccl = communication_bytes(plan.hw)
    return Band(
        low=reserved.low + low + low_nccl,
        mid=reserved.mid + int(mid) + int(mid_nccl),
        high=reserved.high + high + high_nccl,
        source=_source(
            plan, "activation_bytes" if "activation_bytes" in plan.calibration.factors else "base_memory_bytes"
        ),
    )


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
