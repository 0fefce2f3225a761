"""How many bytes has one element, by what it is for, and how many does the loss keep for one logit?

Loss: `F.cross_entropy` of logits that nobody else holds. fp32: logits and log-probabilities (4 + 4), then in backward
log-probabilities and two gradients. All in 16 bit: 2 + 2, then 2 + 2 + 2. CUDA autocast leaves log_softmax in 16 bit
(an explicit dtype is given) but runs nll_loss in fp32 (ATen's LossNLL.cpp and autocast_mode.h): 2 + 2 + 4, then
2 + 4 + 4. CPU autocast runs the whole loss in fp32: 2 + 4 + 4, then 4 + 4 + 4. Inductor fuses the loss: the logits
alone, whose place their gradient takes (donated buffers, torch >= 2.6; before that two). In chunks (`trainers.loss`):
logits and log-probabilities in fp32, which a processor makes of an fp32 copy.

Where FSDP2 gathers weights in 16 bit the stream between the blocks is 16-bit too; CUDA's autocast then casts the norms'
inputs to fp32, a processor's does not.
"""

from __future__ import annotations

from typing import NamedTuple

from preflight.plan import Precision

FP32_BYTES = 4
HALF_BYTES = 2  # bf16 and fp16


class Numerics(NamedTuple):
    """Of one kind of arithmetic."""

    weight: int  # trained parameters and their gradients, as the optimizer sees them
    compute: int  # what is kept of operands and results of matmuls
    product: int  # the same while they are multiplied, and in attention's blocks
    residual: int  # the stream between the blocks
    norm: int  # what norms keep of their input, and give out
    casts_weights: bool  # autocast keeps a 16-bit copy of every trained matrix it has met
    loss_forward_bytes_per_logit: int
    loss_backward_bytes_per_logit: int
    chunk_bytes_per_logit: int
    loss_hole_bytes_per_logit: int = 0  # left by 16-bit logits that died, too small for the fp32 tensors after them
    softmax: int = FP32_BYTES  # of attention written out without a block structure
    master: int = 0  # fp32 weights that the optimizer keeps beside 16-bit ones
    moment: int = FP32_BYTES  # of an optimizer's state with an element per parameter

    @property
    def casts_norm_output(self) -> bool:
        """Every matmul after a norm makes a copy for itself."""
        return self.norm != self.compute

    @property
    def rounds_products(self) -> bool:
        """What is kept is wider than what is multiplied (`trainers.rounding`)."""
        return self.product < self.compute


FULL = Numerics(
    weight=FP32_BYTES, compute=FP32_BYTES, product=FP32_BYTES, residual=FP32_BYTES, norm=FP32_BYTES,
    casts_weights=False, loss_forward_bytes_per_logit=8, loss_backward_bytes_per_logit=12, chunk_bytes_per_logit=8,
)  # fmt: skip
ROUNDED = FULL._replace(product=HALF_BYTES, chunk_bytes_per_logit=10)  # `trainers.rounding`
AUTOCAST = Numerics(
    weight=FP32_BYTES, compute=HALF_BYTES, product=HALF_BYTES, residual=FP32_BYTES, norm=FP32_BYTES, casts_weights=True,
    loss_forward_bytes_per_logit=8, loss_backward_bytes_per_logit=10, chunk_bytes_per_logit=6,
    loss_hole_bytes_per_logit=HALF_BYTES,
)  # fmt: skip
CPU_AUTOCAST = AUTOCAST._replace(
    loss_forward_bytes_per_logit=10, loss_backward_bytes_per_logit=12, chunk_bytes_per_logit=10
)
PURE_HALF = Numerics(
    weight=HALF_BYTES, compute=HALF_BYTES, product=HALF_BYTES, residual=HALF_BYTES, norm=HALF_BYTES,
    casts_weights=False, loss_forward_bytes_per_logit=4, loss_backward_bytes_per_logit=6, chunk_bytes_per_logit=6,
    softmax=HALF_BYTES, moment=HALF_BYTES,
)  # fmt: skip
CPU_PURE_HALF = PURE_HALF._replace(chunk_bytes_per_logit=10)


def compiled(numerics: Numerics) -> Numerics:
    """With the loss inside the graph."""
    n_bytes = numerics.compute
    return numerics._replace(
        loss_forward_bytes_per_logit=n_bytes, loss_backward_bytes_per_logit=n_bytes, loss_hole_bytes_per_logit=0
    )


def with_half_stream(numerics: Numerics, *, on_cpu: bool) -> Numerics:
    """Weights that are 16-bit before autocast sees them."""
    return numerics._replace(residual=HALF_BYTES, norm=HALF_BYTES if on_cpu else FP32_BYTES, casts_weights=False)


def numerics_of(precision: Precision, *, on_cpu: bool, rounds: bool = False) -> Numerics:
    """As `trainers.precision` and `trainers.rounding` set it up."""
    if rounds:
        return ROUNDED
    if precision is Precision.bf16_pure:
        return CPU_PURE_HALF if on_cpu else PURE_HALF
    if precision in (Precision.bf16, Precision.fp16):
        return CPU_AUTOCAST if on_cpu else AUTOCAST
    return FULL
