"""What may each rung change, and in how many steps? A rung's levels start at what was asked for.

The least change comes first in `EVERY_RUNG`: what costs time only (a smaller micro-batch, the loss in chunks,
activations made again, states shared out among the ranks) stands before what changes the arithmetic (8-bit moments,
precision) and the science (the model). `lowering.rungs` may name them in another order; it is the order that counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from conf.choices import Float32Matmul, Optimizer, OptimizerKernel, Parallel
from preflight.hw_plan import Card, CardKind
from preflight.plan import Checkpointing, Precision, RunPlan
from preflight.products import has_tf32, product_precision
from preflight.step_time.card_rates import best_matmul_flops_per_second

BATCH, PRECISION, MODEL = "batch", "precision", "model"
LOSS_CHUNK, CHECKPOINTING, SHARDING, OPTIMIZER = "loss_chunk", "checkpointing", "sharding", "optimizer"
EVERY_RUNG = (BATCH, LOSS_CHUNK, CHECKPOINTING, SHARDING, OPTIMIZER, PRECISION, MODEL)
SLOWER_ONLY = frozenset((BATCH, LOSS_CHUNK, CHECKPOINTING))  # they save memory and never time

LOSS_CHUNK_TOKENS = 1024  # logits of 50,304 ids in fp32: 196 MiB

# What a rung sets, as it would be typed.
FIELDS = {
    BATCH: "trainer.micro_batch_size",
    LOSS_CHUNK: "trainer.loss_chunk_tokens",
    CHECKPOINTING: "trainer.activation_checkpointing",
    SHARDING: "trainer.parallel",
    OPTIMIZER: "trainer.optimizer",
    PRECISION: "trainer.precision",
    MODEL: "model",
}
# Fields of the trainer that move together.
FIELDS_BEHIND = {
    LOSS_CHUNK: ("loss_chunk_tokens",),
    CHECKPOINTING: ("activation_checkpointing",),
    SHARDING: ("parallel",),
    OPTIMIZER: ("optimizer", "optimizer_kernel"),
    PRECISION: ("precision", "float32_matmul_precision"),
}


def order_of(plan: RunPlan) -> tuple[str, ...]:
    """Every rung, the least change first: `lowering.rungs` in its order, the others where they usually stand."""
    order = list(plan.lowering.rungs)
    for rung in (rung for rung in EVERY_RUNG if rung not in plan.lowering.rungs):
        later = EVERY_RUNG[EVERY_RUNG.index(rung) + 1 :]
        place = next((i for i, other in enumerate(order) if other in later), len(order))
        order.insert(place, rung)
    return tuple(order)


def levels(plan: RunPlan, rung: str) -> tuple[RunPlan, ...]:
    """The plan as it is, then lower and lower; the batch has no levels here, since it follows from the memory."""
    return (plan, *_LOWER[rung](plan))


def value_of(plan: RunPlan, rung: str) -> str:
    """What stands in the rung's field, as it would be typed."""
    if rung == MODEL:
        return plan.model.name
    value: Any = getattr(plan.trainer, FIELDS[rung].rpartition(".")[2])
    return str(getattr(value, "name", value))


def with_asked(plan: RunPlan, asked: RunPlan, rung: str) -> RunPlan:
    """The plan with one trainer's rung as it was asked for."""
    names = FIELDS_BEHIND[rung]
    return _with(plan, **{name: getattr(asked.trainer, name) for name in names})


def lower_precisions(asked: Precision, card: Card) -> tuple[Precision, ...]:
    """fp32 -> tf32 (time only) -> bf16 where the hardware has it, else fp16 on tensor cores of the 7.x generation."""
    capability = card.compute_capability or 0.0
    chain = []
    if card.compute_capability is not None and has_tf32(card):
        chain.append(Precision.tf32)
    if card.has_bf16:
        chain.append(Precision.bf16)
    elif card.kind is CardKind.cuda and 7.0 <= capability < 8.0:
        chain.append(Precision.fp16)
    order = (Precision.fp32, Precision.tf32, Precision.bf16, Precision.fp16)
    if asked not in (Precision.fp32, Precision.tf32):
        return ()
    return tuple(precision for precision in chain if order.index(precision) > order.index(asked))


def _with(plan: RunPlan, **fields: Any) -> RunPlan:
    return replace(plan, trainer=replace(plan.trainer, **fields))


def _precisions(plan: RunPlan) -> tuple[RunPlan, ...]:
    """TF32 is a way of multiplying fp32 numbers, so the two fields that say so move together."""
    asked = plan.trainer
    useless = set() if _is_faster_in_tf32(plan) else {Precision.tf32}
    return tuple(
        _with(
            plan,
            precision=precision,
            float32_matmul_precision=Float32Matmul.high
            if precision is Precision.tf32
            else asked.float32_matmul_precision,
        )
        for precision in lower_precisions(asked.precision, plan.hw.card)
        if precision not in useless
    )


def _is_faster_in_tf32(plan: RunPlan) -> bool:
    """It saves no memory, so it is worth something only where the products are faster than they are now."""
    now = best_matmul_flops_per_second(plan.hw, product_precision(plan))
    rounded = best_matmul_flops_per_second(plan.hw, Precision.tf32)
    return now is not None and rounded is not None and rounded > now


def _loss_chunks(plan: RunPlan) -> tuple[RunPlan, ...]:
    """The same sums on fewer logits at a time."""
    return () if plan.trainer.loss_chunk_tokens else (_with(plan, loss_chunk_tokens=LOSS_CHUNK_TOKENS),)


def _checkpointings(plan: RunPlan) -> tuple[RunPlan, ...]:
    order = (Checkpointing.none, Checkpointing.selective, Checkpointing.full)
    more = order[order.index(plan.trainer.activation_checkpointing) + 1 :]
    return tuple(_with(plan, activation_checkpointing=level) for level in more)


def _shardings(plan: RunPlan) -> tuple[RunPlan, ...]:
    """One rank has nobody to share with."""
    order = (Parallel.ddp, Parallel.zero1, Parallel.zero2, Parallel.zero3)
    more = order[order.index(plan.trainer.parallel) + 1 :] if plan.hw.world_size > 1 else ()
    return tuple(_with(plan, parallel=level) for level in more)


def _optimizers(plan: RunPlan) -> tuple[RunPlan, ...]:
    if plan.trainer.optimizer is not Optimizer.adamw:
        return ()
    return (_with(plan, optimizer=Optimizer.adamw_8bit, optimizer_kernel=OptimizerKernel.fused),)


def _models(plan: RunPlan) -> tuple[RunPlan, ...]:
    """The vocabulary belongs to the data: a smaller model keeps it."""
    smaller = plan.lowering.smaller_models
    return tuple(replace(plan, model=model) for model in smaller if model.vocab_size == plan.model.vocab_size)


_LOWER: dict[str, Callable[[RunPlan], tuple[RunPlan, ...]]] = {
    LOSS_CHUNK: _loss_chunks,
    CHECKPOINTING: _checkpointings,
    SHARDING: _shardings,
    OPTIMIZER: _optimizers,
    PRECISION: _precisions,
    MODEL: _models,
}
