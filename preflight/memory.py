"""Peak memory of one rank, term by term and phase by phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from preflight.band import Band
from preflight.plan import RunPlan


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
    raise NotImplementedError
