"""Which of the trainer's implementations is the fastest on this hardware? Measured: docs/speed.md."""

from __future__ import annotations

from conf.choices import Attention, Float32Matmul
from preflight.hw_plan import CardKind
from preflight.plan import Precision

MAX_EAGER_LENGTH = 1024  # written out, attention keeps half of T x T for every head: memory grows with the square


def default_attention(
    kind: CardKind, precision: Precision, fp32_products: Float32Matmul, *, sequence_length: int, dropout: float
) -> Attention:
    """Written out on processors where their matrix units take 16-bit operands, or PyTorch has no fused kernel."""
    is_16_bit = precision in (Precision.bf16, Precision.bf16_pure) or fp32_products is Float32Matmul.medium
    is_faster = kind is CardKind.cpu and sequence_length <= MAX_EAGER_LENGTH and (is_16_bit or dropout > 0)
    return Attention.eager if is_faster else Attention.sdpa
