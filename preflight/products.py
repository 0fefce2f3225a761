"""In which arithmetic are matrices multiplied, where it is not the precision of what they hold?"""

from __future__ import annotations

from conf.choices import Float32Matmul
from preflight.hw_plan import CardKind
from preflight.plan import Precision, RunPlan


def product_precision(plan: RunPlan) -> Precision:
    """What fp32 inputs are multiplied in: trainer.float32_matmul_precision lets the hardware round them first.

    `high` is TF32 on CUDA (torch.set_float32_matmul_precision); `medium` on a processor is bf16 where it has units.
    """
    trainer, card = plan.trainer, plan.hw.card
    if trainer.precision is not Precision.fp32 or trainer.float32_matmul_precision is Float32Matmul.highest:
        return trainer.precision
    if card.kind is CardKind.cuda:
        return Precision.tf32
    return Precision.bf16 if rounds_products(plan) else Precision.fp32


def rounds_products(plan: RunPlan) -> bool:
    """The trainer itself gives a processor's bf16 units what they take (`trainers.rounding`)."""
    trainer, card = plan.trainer, plan.hw.card
    is_medium = trainer.precision is Precision.fp32 and trainer.float32_matmul_precision is Float32Matmul.medium
    return is_medium and card.kind is CardKind.cpu and card.has_bf16
