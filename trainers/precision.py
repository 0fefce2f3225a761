"""Which arithmetic do the matmuls use? Weights, Adam's moments and the residual stream stay fp32 in every case."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from preflight.plan import Precision

AUTOCAST_DTYPES = {Precision.bf16: torch.bfloat16, Precision.fp16: torch.float16}


def set_matmul_precision(precision: Precision) -> None:
    """tf32 lets NVIDIA's tensor cores round fp32 inputs to 10 bits of mantissa; everything else keeps fp32 exact."""
    torch.set_float32_matmul_precision("high" if precision is Precision.tf32 else "highest")


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context of a forward pass."""
    dtype = AUTOCAST_DTYPES.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def make_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler:
    """fp16 gradients underflow unless the loss is scaled up (Micikevicius et al. 2018); a no-op otherwise."""
    return torch.amp.GradScaler(device.type, enabled=precision is Precision.fp16)
