"""Which arithmetic do the matmuls use?

Weights, the optimizer's states and the residual stream stay fp32 in every case but bf16_pure, which keeps everything in
bf16 (`trainers.build` converts the weights): half the memory, and updates below 1/256 of a weight are lost.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from conf.choices import Float32Matmul
from preflight.plan import Precision

AUTOCAST_DTYPES = {Precision.bf16: torch.bfloat16, Precision.fp16: torch.float16}


def weight_dtype(precision: Precision) -> torch.dtype:
    """Of weights that are trained, and of what the optimizer keeps."""
    return torch.bfloat16 if precision is Precision.bf16_pure else torch.float32


def set_matmul_precision(precision: Precision, fp32: Float32Matmul = Float32Matmul.highest) -> None:
    """Of products of fp32 numbers: tf32 lets NVIDIA's tensor cores round them to 10 bits of mantissa.

    `medium` rounds to bf16 where the processor multiplies bf16 in tiles (Intel AMX); on others with bf16 units PyTorch
    keeps fp32, and the model rounds for itself (`trainers.rounding`).
    """
    if precision is Precision.tf32 and fp32 is Float32Matmul.highest:
        fp32 = Float32Matmul.high
    torch.set_float32_matmul_precision(fp32.value)


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context of a forward pass."""
    dtype = AUTOCAST_DTYPES.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def make_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler:
    """fp16 gradients underflow unless the loss is scaled up (Micikevicius et al. 2018); a no-op otherwise."""
    return torch.amp.GradScaler(device.type, enabled=precision is Precision.fp16)
