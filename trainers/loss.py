"""How wrong were the predictions, without ever holding all of them? Head and cross-entropy, so many tokens at a time.

The logits are the largest tensor of a small model: 2.3 GiB in fp32 for 12 x 1024 tokens of GPT-2's vocabulary, and two
to three such tensors live at once. Here a chunk's logits give their loss and, at once, their gradients (softmax minus
one-hot), and are gone before the next chunk's come (as in Liger Kernel, Hsu et al. 2024, arXiv:2410.10989): no matmul
is done twice. What waits for the backward pass is the gradient of the head's input, in the dtype of the matmuls, and of
the head's weight, in fp32.

PyTorch 2.13's own `linear_cross_entropy` does the same in chunks, but `torch.compile` leaves the graph for it, and it
keeps no fp32 sum of the weight's gradient under autocast; 2.9 to 2.12 have none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from trainers.rounding import ROUNDED

IGNORED = -1  # a target that does not count


def chunked_loss(x: Tensor, weight: Tensor, targets: Tensor, n_chunk_tokens: int, *, rounds: bool = False) -> Tensor:
    """Inputs of the head (N, C), its weight (V, C), targets (N,) -> mean cross-entropy over those that count."""
    kind = x.device.type
    autocast_dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    dtype = ROUNDED if rounds else autocast_dtype
    return _ChunkedLoss.apply(x, weight, targets, n_chunk_tokens, dtype, torch.is_grad_enabled())


class _ChunkedLoss(torch.autograd.Function):
    """The gradients are made in the forward pass, for a loss that is a sum; backward scales them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, n_chunk_tokens: int, dtype: torch.dtype, is_training: bool
    ) -> Tensor:
        """One chunk after the other."""
        needs_dx, needs_dw = (is_training and needed for needed in ctx.needs_input_grad[:2])
        total = torch.zeros((), dtype=torch.float32, device=x.device)
        dx = torch.empty_like(x, dtype=dtype) if needs_dx else None
        dw = torch.zeros_like(weight, dtype=torch.float32) if needs_dw else None
        head = weight.to(dtype)
        with torch.autocast(x.device.type, enabled=False):
            for start in range(0, x.size(0), n_chunk_tokens):
                rows, wanted = x[start : start + n_chunk_tokens].to(dtype), targets[start : start + n_chunk_tokens]
                log_p = F.log_softmax(rows @ head.t(), dim=-1, dtype=torch.float32)  # (n_chunk_tokens, V)
                total += F.nll_loss(log_p, wanted, ignore_index=IGNORED, reduction="sum")
                if dx is None and dw is None:
                    continue
                d_logits = _minus_one_hot(log_p.exp_(), wanted).to(dtype)
                del log_p
                if dx is not None:
                    dx[start : start + n_chunk_tokens] = d_logits @ head
                if dw is not None:
                    dw += d_logits.t() @ rows
        n_counted = (targets != IGNORED).sum()
        ctx.save_for_backward(dx, dw, n_counted)
        ctx.dtypes = x.dtype, weight.dtype
        return total / n_counted

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:
        """A loss scaler's factor comes in here, after the 16-bit matmuls."""
        dx, dw, n_counted = ctx.saved_tensors
        factor = d_loss / n_counted
        scaled = [None if d is None else (d * factor).to(dtype) for d, dtype in zip((dx, dw), ctx.dtypes, strict=True)]
        return *scaled, None, None, None, None


def _minus_one_hot(p: Tensor, targets: Tensor) -> Tensor:
    """The derivative of -log p[target] by the logits; zero where nothing is wanted."""
    counts = (targets != IGNORED).to(p.dtype)[:, None]
    return p.scatter_add_(1, targets.clamp(min=0)[:, None], -torch.ones_like(counts)).mul_(counts)
