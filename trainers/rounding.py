"""Products of fp32 numbers in bf16: what `float32_matmul_precision=medium` does on a processor with bf16 units.

PyTorch gives oneDNN leave to round the operands, and oneDNN takes it where bf16 is multiplied in tiles (Intel AMX). On
processors with bf16 dot products alone (`avx512_bf16`: AMD Zen 4 and later, Intel Cooper Lake) it computes in fp32, at
half the rate. So the linears, attention in blocks and the head's loss round by themselves, operands and results of each
product; weights, gradients, norms and the stream between the blocks stay fp32, as `medium` has it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

ROUNDED = torch.bfloat16


def round_products(model: nn.Module) -> None:
    """Of every part that can."""
    for module in model.modules():
        if hasattr(module, "rounds"):
            module.rounds = True  # type: ignore[assignment]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, rounds: bool) -> Tensor:
    """(..., C), (D, C), (D,) -> (..., D), in the dtype of x unless autocast has another."""
    if not rounds:
        return F.linear(x, weight, bias)
    y = _RoundedProduct.apply(x.reshape(-1, x.size(-1)), weight).unflatten(0, x.shape[:-1])
    return y if bias is None else y + bias


class _RoundedProduct(torch.autograd.Function):
    """x (N, C), weight (D, C) -> x @ weight.T (N, D). Keeps its operands as they came, which others keep as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight if ctx.needs_input_grad[0] else None)
        return F.linear(x.to(ROUNDED), weight.to(ROUNDED)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rounded = dy.to(ROUNDED)
        dx = None if weight is None else (rounded @ weight.to(ROUNDED)).to(dy.dtype)
        dw = None if x is None else (rounded.t() @ x.to(ROUNDED)).to(dy.dtype)
        return dx, dw
