"""What cannot be shared out among the ranks? Told as reasons, each with an option that works.

Under zero2 and zero3 a rank has a slice of every tensor, under zero1 the states of whole tensors (`trainers.sharding`).
"""

from __future__ import annotations

from collections.abc import Iterator

from conf.choices import Adapter, Optimizer, Parallel
from preflight.plan import Precision, TrainerPlan

SLICED = (Parallel.zero2, Parallel.zero3)
NOT_IN_SLICES = {
    Optimizer.muon: "makes the updates of whole matrices orthogonal",
    Optimizer.adafactor: "keeps statistics of whole rows and columns",
    Optimizer.adamw_8bit: "keeps states in blocks of its own (bitsandbytes)",
}


def sharing_faults(trainer: TrainerPlan) -> Iterator[tuple[str, str]]:
    """Why, and what to type instead."""
    parallel, optimizer = trainer.parallel, trainer.optimizer
    is_8bit = optimizer is Optimizer.adamw_8bit
    if optimizer in NOT_IN_SLICES and (parallel in SLICED or (is_8bit and parallel is Parallel.zero1)):
        message = f"shares out what {optimizer.name} needs in one piece: it {NOT_IN_SLICES[optimizer]}"
        yield message, f"trainer.parallel={Parallel.ddp.name if is_8bit else Parallel.zero1.name}"
    if parallel in SLICED and trainer.precision is Precision.fp16:
        yield "fp16's loss scaler does not look at slices", "trainer.parallel=zero1, or trainer.precision=bf16"
    if parallel in SLICED and trainer.adapter is not Adapter.none:
        message = "adapters and the frozen weights beside them have types of their own, which slices do not mix"
        yield message, "trainer.parallel=ddp"


def can_share(trainer: TrainerPlan) -> bool:
    """Nothing speaks against it."""
    return next(sharing_faults(trainer), None) is None
