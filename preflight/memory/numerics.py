"""How many bytes has one element, by what it is for, and how many does the loss keep for one logit?

Loss: `F.cross_entropy` of logits that nobody else holds. fp32: logits and log-probabilities (4 + 4), then in backward
log-probabilities and two gradients. All in 16 bit: 2 + 2, then 2 + 2 + 2. CUDA autocast leaves log_softmax in 16 bit
(an explicit dtype is given) but runs nll_loss in fp32 (ATen's LossNLL.cpp and autocast_mode.h): 2 + 2 + 4, then
2 + 4 + 4. CPU autocast runs the whole loss in fp32: 2 + 4 + 4, then 4 + 4 + 4. Inductor fuses the loss: the logits
alone, whose place their gradient takes (donated buffers, torch >= 2.6; before that two).
"""

from __future__ import annotations

from typing import NamedTuple

from preflight.plan import Precision

FP32_BYTES = 4
HALF_BYTES = 2  # bf16 and fp16


class Numerics(NamedTuple):
    """Of one kind of arithmetic."""

    weight: int  # trained parameters and their gradients, as autograd sees them
    compute: int  # operands and results of matmuls
    residual: int  # the stream between the blocks, and what norms give out
    casts_weights: bool  # autocast keeps a 16-bit copy of every matrix it has met
    loss_forward_bytes_per_logit: int
    loss_backward_bytes_per_logit: int
    loss_hole_bytes_per_logit: int = 0  # left by 16-bit logits that died, too small for the fp32 tensors after them
    master: int = 0  # fp32 weights that the optimizer keeps beside 16-bit ones
    moment: int = FP32_BYTES  # of an optimizer's state with an element per parameter


FULL = Numerics(FP32_BYTES, FP32_BYTES, FP32_BYTES, False, 8, 12)
AUTOCAST = Numerics(FP32_BYTES, HALF_BYTES, FP32_BYTES, True, 8, 10, HALF_BYTES)
CPU_AUTOCAST = AUTOCAST._replace(loss_forward_bytes_per_logit=10, loss_backward_bytes_per_logit=12)
PURE_HALF = Numerics(HALF_BYTES, HALF_BYTES, HALF_BYTES, False, 4, 6, moment=HALF_BYTES)


def compiled(numerics: Numerics) -> Numerics:
    """With the loss inside the graph."""
    n_bytes = numerics.compute
    return numerics._replace(
        loss_forward_bytes_per_logit=n_bytes, loss_backward_bytes_per_logit=n_bytes, loss_hole_bytes_per_logit=0
    )


_COMPILED_FULL, _COMPILED_AUTOCAST, _COMPILED_PURE = compiled(FULL), compiled(AUTOCAST), compiled(PURE_HALF)


def numerics_of(precision: Precision, *, on_cpu: bool, is_compiled: bool) -> Numerics:
    """As `trainers.precision` sets it up."""
    if precision is Precision.bf16_pure:
        return _COMPILED_PURE if is_compiled else PURE_HALF
    if precision not in (Precision.bf16, Precision.fp16):
        return _COMPILED_FULL if is_compiled else FULL
    if is_compiled:
        return _COMPILED_AUTOCAST
    return CPU_AUTOCAST if on_cpu else AUTOCAST
