"""How fast is one rank's share of a card? Matmuls by width, fp32 arithmetic, memory traffic.

A `Card` of kind cpu describes the *whole* processor: the ranks of a node share it, so each gets 1/n of its arithmetic
and of its bandwidth. A card of any other kind belongs to one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pow

from preflight.hw_plan import Card, CardKind, HwPlan
from preflight.plan import Precision
from preflight.priors import attention_fraction, matmul_fraction
from preflight.step_time.constants import StepConstants

A100_RIDGE_FLOPS_PER_BYTE = 135.0  # 0.87 x 312 TFLOPS / 2039 GB/s, rounded
# An A100 can spend 1.28 W on each TFLOPS of its peak. Boards with less (H100 0.71, L4 0.60, H100 PCIe 0.46, B200 0.44)
# are held back by their power limit in long runs, whatever a short best-shape matmul reaches.
UNTHROTTLED_WATTS_PER_FLOPS = 1.28e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRates:
    """What one rank can count on."""

    matmul_flops_per_second: float  # wide matmuls, sustained
    attention_flops_per_second: float  # matmuls inside fused attention
    fp32_flops_per_second: float  # elementwise arithmetic, listed
    bytes_per_second: float
    knee_width: float  # where a matmul reaches half of its rate

    def matmul_flops_per_second_at(self, width: int) -> float:
        """The rate of matmuls whose narrow side is `width`."""
        return self.matmul_flops_per_second * width / (width + self.knee_width)


def peak_flops_per_second(card: Card, precision: Precision) -> float | None:
    """The listed dense rate; None: unknown.

    tf32 is a permission to round, so at least fp32: without its units it has no effect. bf16 without its units (before
    compute capability 8.0) is computed in fp32 by the library, so it counts at that rate.
    """
    rates = card.peak_flops_per_second
    if precision is Precision.bf16_pure:
        precision = Precision.bf16
    own, fp32 = rates.get(precision.value), rates.get(Precision.fp32.value)
    if precision is Precision.tf32:
        return max(own or 0.0, fp32 or 0.0) or None
    return own or (fp32 if precision is Precision.bf16 and not card.has_bf16 else None)


def best_matmul_flops_per_second(hw: HwPlan, precision: Precision) -> float | None:
    """What action=calibrate measured, else what cards of this kind reach of the listed rate.

    In tf32 at least what fp32 reaches: tensor units of consumer cards have the listed rate of the fp32 units in it,
    and reach less of theirs (efficiency.csv).
    """
    own = _measured_matmul(hw, precision)
    if precision is not Precision.tf32:
        return own or listed_matmul_flops_per_second(hw.card, precision)
    fp32 = _measured_matmul(hw, Precision.fp32)
    return max(own or listed_matmul_flops_per_second(hw.card, precision) or 0.0, fp32 or 0.0) or None


def listed_matmul_flops_per_second(card: Card, precision: Precision) -> float | None:
    """The part of the listed rate that the best matmul reaches."""
    peak = peak_flops_per_second(card, precision)
    own = peak and peak * matmul_fraction(card, precision)
    if precision is not Precision.tf32:
        return own
    return max(own or 0.0, listed_matmul_flops_per_second(card, Precision.fp32) or 0.0) or None


def card_rates(hw: HwPlan, precision: Precision, constants: StepConstants) -> CardRates | None:
    """What action=calibrate measured, else what is listed; None: neither is known at this precision."""
    card, peak = hw.card, peak_flops_per_second(hw.card, precision)
    ceiling = best_matmul_flops_per_second(hw, precision)
    bytes_per_second = _bytes_per_second(hw, constants)
    if not ceiling or not bytes_per_second:
        return None
    n_sharing = hw.n_gpus_per_node if card.kind is CardKind.cpu else 1
    listed_bytes = card.bandwidth_bytes_per_second or bytes_per_second / constants.bandwidth_fraction
    ridge = ceiling / listed_bytes / A100_RIDGE_FLOPS_PER_BYTE
    sustained = constants.sustained_fraction * (_power_fraction(card, precision, peak, constants) if peak else 1.0)
    in_kernel = peak * attention_fraction(card, precision) if peak else ceiling
    in_attention = min(constants.attention_fraction * ceiling, in_kernel)
    return CardRates(
        matmul_flops_per_second=sustained * ceiling / n_sharing,
        attention_flops_per_second=sustained * in_attention / n_sharing,
        fp32_flops_per_second=card.peak_flops_per_second.get(Precision.fp32.value, peak or ceiling) / n_sharing,
        bytes_per_second=bytes_per_second / n_sharing,
        knee_width=constants.knee_width * ridge,
    )


def _bytes_per_second(hw: HwPlan, constants: StepConstants) -> float | None:
    """What streaming kernels reach: a measured copy, else their usual part of the listed rate."""
    measured = hw.measured.bandwidth_bytes_per_second if hw.measured is not None else None
    listed = hw.card.bandwidth_bytes_per_second
    return measured or (listed and constants.bandwidth_fraction * listed)


def _measured_matmul(hw: HwPlan, precision: Precision) -> float | None:
    """The best that action=calibrate found on this card; None: nobody looked."""
    rates = hw.measured.matmul_flops_per_second if hw.measured is not None else {}
    return rates.get("bf16" if precision is Precision.bf16_pure else precision.value)


def _power_fraction(card: Card, precision: Precision, peak: float, constants: StepConstants) -> float:
    """Tensor cores at their peak are what a power limit bites; unknown watts: no statement."""
    if card.watts is None or precision not in (Precision.bf16, Precision.fp16, Precision.bf16_pure):
        return 1.0
    return pow(min(1.0, card.watts / (peak * UNTHROTTLED_WATTS_PER_FLOPS)), constants.power_exponent)
