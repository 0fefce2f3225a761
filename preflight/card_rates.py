"""How fast is one rank's share of a card? Matmuls by width, memory traffic, kernel launches.

A `Card` of kind cpu describes the *whole* processor: the ranks of a node share it, so each gets 1/n of its arithmetic
and of its bandwidth. A card of any other kind belongs to one rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from preflight.plan import Card, CardKind, HwPlan, Precision
from preflight.priors import matmul_fraction

# Below this width a matmul no longer fills the card. Saturation d / (d + KNEE x R) as measured on matmuls by size
# (mli/transformers-benchmarks, RTX 3090 Ti: 0.4, 25.9, 71.5, 81.3 TFLOPS at n = 128, 512, 2048, 8192), where R is the
# card's ridge point (FLOP per byte) relative to an A100's: a card with more arithmetic per byte needs wider matmuls.
KNEE_WIDTH = 150.0
A100_RIDGE_FLOPS_PER_BYTE = 135.0
# A training step never runs at the rate of the best matmul alone: clocks, tails, autograd's copies.
SUSTAINED_FRACTION = 0.85
BANDWIDTH_FRACTION = 0.85  # STREAM-like kernels on HBM and GDDR reach 80-92 % of the listed rate
CARD_LAUNCH_SECONDS = 8e-6  # CPU side of one CUDA kernel from eager PyTorch; 7 us is the floor
CPU_LAUNCH_SECONDS = 4e-6  # dispatch of one operator and waking the thread pool


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRates:
    """What one rank can count on."""

    peak_flops_per_second: float  # listed
    matmul_flops_per_second: float  # wide matmuls, sustained
    bytes_per_second: float
    ridge: float  # relative to an A100
    launch_seconds: float

    def matmul_flops_per_second_at(self, width: int) -> float:
        """The rate of matmuls whose narrow side is `width`."""
        return self.matmul_flops_per_second * width / (width + KNEE_WIDTH * self.ridge)


def peak_flops_per_second(card: Card, precision: Precision) -> float | None:
    """The listed dense rate; None: unknown.

    tf32 without its units is fp32: the switch has no effect there. bf16 without its units (before compute capability
    8.0) is computed in fp32 by the library, so it counts at that rate.
    """
    rates = card.peak_flops_per_second
    as_fp32 = precision is Precision.tf32 or (precision is Precision.bf16 and not card.has_bf16)
    return rates.get(precision.value) or (rates.get(Precision.fp32.value) if as_fp32 else None)


def card_rates(hw: HwPlan, precision: Precision) -> CardRates | None:
    """None: the card's rate at this precision, or its bandwidth, is unknown."""
    card = hw.card
    peak = peak_flops_per_second(card, precision)
    if not peak or not card.bandwidth_bytes_per_second:
        return None
    on_cpu = card.kind is CardKind.cpu
    n_sharing = hw.n_gpus_per_node if on_cpu else 1
    ceiling = peak * matmul_fraction(card, precision.value)
    return CardRates(
        peak_flops_per_second=peak / n_sharing,
        matmul_flops_per_second=SUSTAINED_FRACTION * ceiling / n_sharing,
        bytes_per_second=BANDWIDTH_FRACTION * card.bandwidth_bytes_per_second / n_sharing,
        ridge=ceiling / card.bandwidth_bytes_per_second / A100_RIDGE_FLOPS_PER_BYTE,
        launch_seconds=CPU_LAUNCH_SECONDS if on_cpu else CARD_LAUNCH_SECONDS,
    )
