"""How does every position look at itself and at what came before? Softmax(Q K^T / sqrt(D)) V, causal, two ways.

sdpa    PyTorch's fused kernel: nothing of T x T is ever whole (Dao et al. 2022). The fastest on cards.
eager   matmul, softmax, matmul over blocks of queries, each against the keys up to its end, so that most of what the
        mask would throw away is never computed. On processors batched matmuls run in their matrix units, which
        PyTorch's fused kernel (its backward pass above all) does not fill: docs/speed.md has the figures.

Shapes in comments: B sequences, H heads, K heads of keys and values, G = H / K, T positions, D channels of a head,
R queries of a block, E positions up to its end.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from conf.choices import Attention
from preflight.attention_blocks import query_blocks
from trainers.rounding import ROUNDED


def causal_attention(
    kind: Attention, q: Tensor, k: Tensor, v: Tensor, dropout: float, *, rounds: bool = False
) -> Tensor:
    """(B, H, T, D) queries, (B, K, T, D) keys and values -> (B, T, H * D), heads side by side."""
    B, H, T, D = q.shape
    dtype = q.dtype
    if kind is Attention.sdpa:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout, enable_gqa=k.size(1) != H)
    else:  # heads that share keys are G rows of queries against them: nothing is repeated
        K = k.size(1)
        if rounds:  # `trainers.rounding`
            q, k, v = (part.to(ROUNDED) for part in (q, k, v))
        shared = (part.reshape(B * K, T, D) for part in (k, v))
        y = _Blockwise.apply(q.reshape(B * K, H // K, T, D), *shared, dropout).view(B, H, T, D)
    return y.transpose(1, 2).reshape(B, T, H * D).to(dtype)


class _Blockwise(torch.autograd.Function):
    """(B*K, G, T, D), (B*K, T, D) twice -> (B*K, G, T, D). Backward needs q, k, v and the softmax, in their dtype."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        """One block of queries at a time."""
        y, kept = torch.empty_like(q), []
        with torch.autocast(q.device.type, enabled=False):  # the inputs say which arithmetic is meant
            for start, end in query_blocks(q.size(2)):
                rows = q[:, :, start:end].flatten(1, 2)  # (B*K, G*R, D)
                scores = torch.baddbmm(
                    _mask(start, end, q), rows, k[:, :end].transpose(1, 2), alpha=1 / math.sqrt(q.size(3))
                )  # (B*K, G*R, E)
                weights = torch.softmax(scores, dim=-1)
                del scores
                kept.append(weights)
                if dropout:
                    weights, passed = torch.native_dropout(weights, dropout, True)
                    kept.append(passed)
                y[:, :, start:end] = torch.bmm(weights, v[:, :end]).unflatten(1, (q.size(1), -1))
        ctx.save_for_backward(q, k, v, *kept)
        ctx.dropout = dropout
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """The last block reaches over all keys: its gradients are the ones that the others' are added to."""
        q, k, v, *kept = ctx.saved_tensors
        dq, scale = torch.empty_like(q), 1 / math.sqrt(q.size(3))
        dk = dv = torch.empty(0)
        with torch.autocast(q.device.type, enabled=False):
            for start, end in reversed(query_blocks(q.size(2))):
                passed = kept.pop() if ctx.dropout else None
                weights = kept.pop()
                rows, dy_rows = (part[:, :, start:end].flatten(1, 2) for part in (q, dy))
                d_weights = torch.bmm(dy_rows, v[:, :end].transpose(1, 2))
                used = weights
                if passed is not None:
                    kept_fraction = 1 - ctx.dropout
                    used = weights * passed / kept_fraction
                    d_weights = d_weights * passed / kept_fraction
                d_scores = torch._softmax_backward_data(d_weights, weights, -1, weights.dtype)
                dq[:, :, start:end] = (torch.bmm(d_scores, k[:, :end]) * scale).unflatten(1, (q.size(1), -1))
                dk_part, dv_part = torch.bmm(d_scores.transpose(1, 2), rows), torch.bmm(used.transpose(1, 2), dy_rows)
                if end == q.size(2):
                    dk, dv = dk_part, dv_part
                else:
                    dk[:, :end] += dk_part
                    dv[:, :end] += dv_part
        return dq, dk * scale, dv, None


def _mask(start: int, end: int, q: Tensor) -> Tensor:
    """(G*R, E): 0 where a query may look, minus infinity at what comes after it."""
    mask = torch.full((end - start, end), -math.inf, dtype=q.dtype, device=q.device).triu_(start + 1)
    return mask.repeat(q.size(1), 1)
