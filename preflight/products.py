"""In which arithmetic are matrices multiplied, where it is not the precision of what they hold?"""

from __future__ import annotations

from conf.choices import Float32Matmul
from preflight.hw_plan import Card, CardKind
from preflight.plan import Precision, RunPlan, TrainerPlan

TF32_CAPABILITY = 8.0  # its units came with Ampere (NVIDIA's A100 whitepaper, 2020)


def has_tf32(card: Card) -> bool:
    """A card of unknown compute capability is taken for one of today's."""
    return card.kind is CardKind.cuda and (card.compute_capability or TF32_CAPABILITY) >= TF32_CAPABILITY


def product_precision(plan: RunPlan) -> Precision:
    """What fp32 inputs are multiplied in: trainer.float32_matmul_precision lets the hardware round them first.

    `high` is TF32 on CUDA (torch.set_float32_matmul_precision); `medium` on a processor is bf16 where it has units.
    Without such units the products stay fp32.
    """
    return arithmetic_of(plan.trainer, plan.hw.card)


def arithmetic_of(trainer: TrainerPlan, card: Card) -> Precision:
    """The same of a plan that is not put together yet."""
    if trainer.precision is not Precision.fp32 or trainer.float32_matmul_precision is Float32Matmul.highest:
        return trainer.precision
    if has_tf32(card):
        return Precision.tf32
    return Precision.bf16 if _rounds(trainer, card) else Precision.fp32


def rounds_products(plan: RunPlan) -> bool:
    """The trainer itself gives a processor's bf16 units what they take (`trainers.rounding`)."""
    return _rounds(plan.trainer, plan.hw.card)


def _rounds(trainer: TrainerPlan, card: Card) -> bool:
    is_medium = trainer.precision is Precision.fp32 and trainer.float32_matmul_precision is Float32Matmul.medium
    return is_medium and card.kind is CardKind.cpu and card.has_bf16
