# ruff: noqa: TID253, N812 - torch is what is tested here
"""Attention written out gives what the fused kernel gives, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from conf.choices import Attention
from preflight.attention_blocks import n_scores, query_blocks
from trainers.attention import causal_attention

B, H, D = 2, 4, 8


def make_qkv(n_kv_head: int, n_positions: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(B, n_positions, n, D, dtype=dtype).transpose(1, 2).requires_grad_()
        for n in (H, n_kv_head, n_kv_head)
    ]


@pytest.mark.parametrize("n_positions", [1, 3, 64, 70, 256, 310])
@pytest.mark.parametrize("n_kv_head", [4, 2, 1])
def test_eager_attention_equals_the_fused_kernel(n_positions: int, n_kv_head: int) -> None:
    results = []
    for kind in Attention:
        qkv = make_qkv(n_kv_head, n_positions)
        y = causal_attention(kind, *qkv, dropout=0.0)
        weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
        results.append([y.detach(), *torch.autograd.grad((y * weights).sum(), qkv)])
    for fused, eager in zip(*results, strict=True):
        torch.testing.assert_close(eager, fused, rtol=1e-9, atol=1e-11)


def test_eager_attention_stays_in_the_dtype_of_its_inputs_under_autocast() -> None:
    qkv = make_qkv(4, 64, torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.float16):
        y = causal_attention(Attention.eager, *qkv, dropout=0.0)
    y.float().sum().backward()
    assert y.dtype == qkv[0].grad.dtype == torch.bfloat16  # type: ignore[union-attr]


def test_eager_attention_differentiates_its_dropout() -> None:
    """The same mask forward and backward: the function is linear in v, so its gradient times v is its value."""
    q, k, v = make_qkv(2, 70)
    torch.manual_seed(3)
    y = causal_attention(Attention.eager, q, k, v, dropout=0.5)
    dq, dv = torch.autograd.grad(y.sum(), (q, v))
    torch.testing.assert_close((dv * v).sum(), y.sum())
    changed = q.detach() + 1e-6 * torch.ones_like(q)
    torch.manual_seed(3)
    y_changed = causal_attention(Attention.eager, changed, k, v, dropout=0.5)
    torch.testing.assert_close((y_changed - y).sum(), 1e-6 * dq.sum(), rtol=1e-4, atol=1e-9)
    kept = causal_attention(Attention.sdpa, q, k, v, dropout=0.0)
    assert not torch.allclose(y, kept)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile's own doing
def test_eager_attention_can_be_compiled() -> None:
    """`aot_eager` traces forward and backward as inductor would, without a C++ compiler."""
    compiled = torch.compile(causal_attention, backend="aot_eager", fullgraph=True)
    grads = []
    for function in (causal_attention, compiled):
        qkv = make_qkv(2, 70)
        function(Attention.eager, *qkv, dropout=0.0).square().sum().backward()
        grads.append(qkv[0].grad)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(("n_positions", "expected"), [(64, 64 * 64), (256, 64 * (64 + 128 + 192 + 256)), (1, 1)])
def test_n_scores_counts_each_block_up_to_its_end(n_positions: int, expected: int) -> None:
    assert n_scores(n_positions) == expected


def test_query_blocks_cover_every_position_once() -> None:
    for n_positions in (1, 63, 65, 300, 1024, 5000):
        rows = [i for start, end in query_blocks(n_positions) for i in range(start, end)]
        assert rows == list(range(n_positions))


def test_attention_of_one_value_is_that_value() -> None:
    q, k, v = make_qkv(4, 1)
    y = causal_attention(Attention.eager, q, k, v, dropout=0.0)
    torch.testing.assert_close(y, v.transpose(1, 2).reshape(B, 1, H * D))
    assert F.cosine_similarity(y.flatten(), v.flatten(), dim=0) > 0.999
