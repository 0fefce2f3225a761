# ruff: noqa: TID253, N812 - torch is what is tested here
"""Head and loss in chunks give what they give at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from conf.choices import Attention
from preflight.plan import RunPlan
from trainers.gpt import GPT
from trainers.loss import IGNORED, chunked_loss

N, C, V = 10, 8, 13


def make_inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x, weight = torch.randn(N, C, dtype=dtype), torch.randn(V, C, dtype=dtype)
    targets = torch.randint(0, V, (N,))
    targets[3] = IGNORED
    return x.requires_grad_(), weight.requires_grad_(), targets


@pytest.mark.parametrize("n_chunk_tokens", [1, 4, 10, 1000])
def test_chunked_loss_equals_the_whole_one(n_chunk_tokens: int) -> None:
    x, weight, targets = make_inputs(torch.float64)
    whole = 3 * F.cross_entropy(x @ weight.t(), targets, ignore_index=IGNORED)
    expected = torch.autograd.grad(whole, (x, weight))
    chunked = 3 * chunked_loss(x, weight, targets, n_chunk_tokens)
    torch.testing.assert_close(chunked.double(), whole)
    for got, want in zip(torch.autograd.grad(chunked, (x, weight)), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_chunked_loss_follows_autocast_and_gives_gradients_in_the_dtype_of_the_weights() -> None:
    x, weight, targets = make_inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole = F.cross_entropy(F.linear(x, weight).float(), targets, ignore_index=IGNORED)
        chunked = chunked_loss(x, weight, targets, 4)
    dx, dw = torch.autograd.grad(chunked, (x, weight))
    assert (chunked.dtype, dx.dtype, dw.dtype) == (torch.float32,) * 3
    torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=0)
    for got, want in zip((dx, dw), torch.autograd.grad(whole, (x, weight)), strict=True):
        torch.testing.assert_close(got, want, rtol=0.02, atol=2e-3)


def test_chunked_loss_makes_no_gradient_that_nobody_asks_for() -> None:
    x, weight, targets = make_inputs()
    with torch.no_grad():
        assert not chunked_loss(x, weight, targets, 4).requires_grad
    weight.requires_grad_(False)
    chunked_loss(x, weight, targets, 4).backward()
    assert x.grad is not None
    assert weight.grad is None


def test_chunked_loss_never_holds_all_logits() -> None:
    """The largest tensor that any operator gives back has one chunk's logits."""
    x, weight, targets = make_inputs()
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    with Watch():
        chunked_loss(x, weight, targets, 2).backward()
    assert largest == V * C  # the weight's gradient: 2 x 13 logits are fewer


@pytest.mark.parametrize("attention", list(Attention))
def test_gpt_has_one_loss_and_gradient_however_it_is_computed(
    make_plan: Callable[..., RunPlan], attention: Attention
) -> None:
    plan = make_plan(model="tiny", card="cpu", micro_batch_size=2, sequence_length=16)
    losses, gradients = [], []
    torch.manual_seed(0)
    idx = torch.randint(0, plan.model.vocab_size, (2, 16))
    for chunk in (0, 5, 32):
        torch.manual_seed(1)
        trainer = replace(plan.trainer, attention=attention, loss_chunk_tokens=chunk)
        model = GPT.of(replace(plan, trainer=trainer))
        loss = model(idx, idx.roll(-1, 1))
        loss.backward()
        losses.append(loss.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    for loss, gradient in zip(losses[1:], gradients[1:], strict=True):
        torch.testing.assert_close(loss, losses[0])
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile's own doing
def test_chunked_loss_can_be_compiled_whole() -> None:
    """`aot_eager` traces forward and backward as inductor would, without a C++ compiler."""
    compiled = torch.compile(chunked_loss, backend="aot_eager", fullgraph=True)
    gradients = []
    for function in (chunked_loss, compiled):
        x, weight, targets = make_inputs()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            function(x, weight, targets, 4).backward()
        gradients.append((x.grad, weight.grad))
    torch.testing.assert_close(*gradients)
