# ruff: noqa: TID253, N812 - torch is what is tested here
"""Products of fp32 numbers are rounded to bf16, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from conf.choices import Adapter, Attention, Float32Matmul
from preflight.plan import Precision, RunPlan
from tests.conftest import build_plan
from trainers.attention import causal_attention
from trainers.build import build_model
from trainers.loss import chunked_loss
from trainers.rounding import linear

N, C, D = 6, 8, 5


def medium(plan: RunPlan, *, has_bf16: bool, **trainer: object) -> RunPlan:
    settings = {"precision": Precision.fp32, "float32_matmul_precision": Float32Matmul.medium, **trainer}
    card = replace(plan.hw.card, has_bf16=has_bf16)
    return replace(plan, trainer=replace(plan.trainer, **settings), hw=replace(plan.hw, card=card))


def test_rounded_linear_multiplies_in_bf16_and_gives_fp32_forward_and_backward() -> None:
    torch.manual_seed(0)
    x, weight, dy = (
        torch.randn(2, N, C, requires_grad=True),
        torch.randn(D, C, requires_grad=True),
        torch.randn(2, N, D),
    )
    y = linear(x, weight, torch.ones(D), rounds=True)
    dx, dw = torch.autograd.grad(y, (x, weight), dy)
    short = [part.detach().bfloat16() for part in (x, weight, dy)]
    assert torch.equal(y, F.linear(short[0], short[1]).float() + 1)
    assert torch.equal(dx, (short[2] @ short[1]).float())
    assert torch.equal(dw, (short[2].flatten(0, 1).t() @ short[0].flatten(0, 1)).float())


def test_rounded_linear_with_a_frozen_weight_keeps_no_input() -> None:
    x, weight = torch.randn(N, C, requires_grad=True), torch.randn(D, C)
    y = linear(x, weight, None, rounds=True)
    product = y.grad_fn.next_functions[0][0]  # type: ignore[union-attr] # before the view
    assert product.saved_tensors[0] is None  # type: ignore[union-attr]
    y.sum().backward()
    assert x.grad is not None


def test_rounded_attention_computes_in_bf16_and_gives_fp32() -> None:
    q, k, v = (torch.randn(2, 4, 70, 8, requires_grad=True) for _ in range(3))
    y = causal_attention(Attention.eager, q, k, v, 0.0, rounds=True)
    y.sum().backward()
    short = [part.detach().bfloat16() for part in (q, k, v)]
    assert torch.equal(y, causal_attention(Attention.eager, *short, 0.0).float())
    assert q.grad is not None
    assert q.grad.dtype == torch.float32


def test_rounded_loss_in_chunks_is_near_the_exact_one() -> None:
    x, weight, targets = torch.randn(N, C, requires_grad=True), torch.randn(D, C), torch.tensor([0, 1, 2, 3, 4, 0])
    exact, rounded = (chunked_loss(x, weight, targets, 4, rounds=rounds) for rounds in (False, True))
    assert rounded != exact
    torch.testing.assert_close(rounded, exact, rtol=0.01, atol=0)
    assert torch.autograd.grad(rounded, x)[0].dtype == torch.float32


@pytest.mark.parametrize("adapter", list(Adapter)[:2])
def test_model_rounds_its_products_only_where_the_processor_has_bf16_units(
    adapter: Adapter,
) -> None:
    plan = build_plan(model="tiny", card="cpu", sequence_length=16, micro_batch_size=2)
    tokens = torch.randint(0, 256, (2, 16))
    outputs = {}
    for has_bf16 in (False, True):
        model = build_model(medium(plan, has_bf16=has_bf16, adapter=adapter))
        rounding = [module.rounds for module in model.modules() if hasattr(module, "rounds")]
        assert set(rounding) == {has_bf16}
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
        outputs[has_bf16] = model(tokens).detach()
    assert not torch.equal(*outputs.values())
    torch.testing.assert_close(*outputs.values(), rtol=0.05, atol=0.02)
