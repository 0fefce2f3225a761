"""Which tensors are alive, and what would CUDA's autocast and kernels keep? Storages are counted as they come and go.

A storage counts from the operator that made it until its last reference dies, as an allocator would see it; what a
kernel allocates inside one operator stays unseen. CUDA's autocast cannot be switched on without a card, and some of its
kernels have no counterpart on a processor: their rules are spelled out here.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from trainers import gpt
from trainers.loss import _ChunkedLoss


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of all living storages that passed an operator, and their largest sum in each phase of the formula.

    `adds_in_place`: autograd sums the two gradients of a tied embedding in the head's own tensor when that was cast,
    but never under an operator mode such as this one.
    """

    def __init__(self, *, adds_in_place: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.adds_in_place = adds_in_place
        self.phase = ""
        self.peak_bytes: dict[str, int] = {}
        self.now_bytes = 0
        self._living: dict[int, int] = {}
        self._sum: weakref.ref[Tensor] | None = None

    def add(self, tensor: Tensor) -> None:
        """Count a tensor's storage, once."""
        storage = tensor.untyped_storage()
        key, n_bytes = storage._cdata, storage.nbytes()
        if key in self._living or not n_bytes:
            return
        self._living[key] = n_bytes
        self.now_bytes += n_bytes
        weakref.finalize(storage, self._remove, key)
        self.peak_bytes[self.phase] = max(self.peak_bytes.get(self.phase, 0), self.now_bytes)

    def _remove(self, key: int) -> None:
        self.now_bytes -= self._living.pop(key)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, then count what it made. Its name says which part of the backward pass has begun."""
        name = str(func)
        if self._sum is not None and (made := self._sum()) is not None:
            self.add(made)
        self._sum = None
        if self.phase == "head_backward" and "layer_norm_backward" in name:
            self.phase = "layer_backward"
        if self.phase == "layer_backward" and "embedding_dense_backward" in name:
            self.phase = "backward_end"
        result = func(*args, **(kwargs or {}))
        if self.adds_in_place and self.phase == "backward_end" and name == "aten.add.Tensor":
            self._sum = weakref.ref(result)  # counted once the operand whose place it takes is gone
            return result
        for leaf in tree_iter(result):
            if isinstance(leaf, Tensor):
                self.add(leaf)
        if self.phase == "loss_backward" and "log_softmax_backward" in name:
            self.phase = "head_backward"
        return result


class FusedRMSNorm(torch.autograd.Function):
    """CUDA's kernel keeps its input and a deviation per row; a processor's norm is written out in elementary steps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """The values do not matter."""
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Alike."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def fused_rms_norm(x: Tensor, shape: Any, weight: Tensor, eps: float | None = None) -> Tensor:
    """As `F.rms_norm` on CUDA, where autocast has it in fp32."""
    del shape, eps
    return FusedRMSNorm.apply(x.float() if x.dtype != weight.dtype else x, weight)  # type: ignore[no-untyped-call,no-any-return]


class FusedLogSoftmax(torch.autograd.Function):
    """CUDA's kernel reads 16 bit and writes fp32; a processor makes an fp32 copy first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The values do not matter."""
        result = torch.empty_like(x, dtype=torch.float32)
        ctx.save_for_backward(result)
        ctx.dtype = x.dtype
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Alike."""
        return torch.empty_like(gradient, dtype=ctx.dtype)


@contextlib.contextmanager
def cuda_kernels() -> Iterator[None]:
    """What a card runs in one kernel."""
    log_softmax, dropout = F.log_softmax, F.dropout

    def fused_dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
        """Its mask is of a byte an element; a processor's has the type of its input."""
        return torch.native_dropout(x, p, train=True)[0] if training and p else dropout(x, p, training)

    def fused_log_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        if dtype is torch.float32 and x.dtype != dtype:
            return FusedLogSoftmax.apply(x)  # type: ignore[no-untyped-call,no-any-return]
        return log_softmax(x, dim=dim, dtype=dtype)

    patches: dict[str, Any] = {"rms_norm": fused_rms_norm, "log_softmax": fused_log_softmax, "dropout": fused_dropout}
    with mock.patch.multiple(F, **patches):
        yield


@contextlib.contextmanager
def cuda_autocast(dtype: torch.dtype, *, keeps_casts: bool) -> Iterator[None]:
    """What `torch.autocast("cuda")` does to this model: linears in 16 bit with cached weights, nll_loss in fp32."""
    casts: dict[int, Tensor] = {}
    linear, log_softmax, nll_loss = F.linear, F.log_softmax, F.nll_loss

    def cast(parameter: Tensor) -> Tensor:
        if not keeps_casts or not isinstance(parameter, nn.Parameter):  # a temporary leaves its id to the next
            return parameter.to(dtype)
        if id(parameter) not in casts:
            casts[id(parameter)] = parameter.to(dtype)
        return casts[id(parameter)]

    def half_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(x.to(dtype), cast(weight), None if bias is None else cast(bias))

    def half_cross_entropy(logits: Tensor, targets: Tensor, ignore_index: int) -> Tensor:
        return nll_loss(log_softmax(logits, dim=-1).float(), targets, ignore_index=ignore_index)

    def half_chunked_loss(x: Tensor, weight: Tensor, targets: Tensor, n_chunk_tokens: int, *, rounds: bool) -> Tensor:
        assert not rounds  # which processors do
        return _ChunkedLoss.apply(x, weight, targets, n_chunk_tokens, dtype, torch.is_grad_enabled())  # type: ignore[no-any-return,no-untyped-call]

    with (
        mock.patch.object(F, "linear", half_linear),
        mock.patch.object(F, "cross_entropy", half_cross_entropy),
        mock.patch.object(gpt, "chunked_loss", half_chunked_loss),
    ):
        yield
