"""How many seconds does one optimizer step take, term by term?

Roofline by term (Williams et al. 2009): matmuls at the card's sustained rate for their width, everything else at the
memory's rate, the host's launches as a floor, the gradients' all-reduce as far as it does not hide. Terms add up:
PyTorch runs one kernel after the other. Not modelled, but in the band: data stalls, throttling, slow nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from preflight.band import Band
from preflight.card_rates import CardRates, card_rates, peak_flops_per_second
from preflight.communication import exposed_seconds
from preflight.flops import (
    BACKWARD_PER_FORWARD,
    attention_forward_flops_per_token,
    head_forward_flops_per_token,
    layer_forward_flops_per_token,
    train_flops_per_token,
)
from preflight.params import count_params
from preflight.plan import CardKind, Checkpointing, Precision, RunPlan

FORWARD_AND_BACKWARD = 1 + BACKWARD_PER_FORWARD
ATTENTION_FRACTION = (
    0.5  # of the matmul rate, fused attention forward and backward (FlashAttention-2, arXiv:2307.08691)
)
CPU_ATTENTION_FRACTION = 0.2  # its backward pass was 28 % of a 10M model's step on two cores
# Bytes moved per activation element and layer besides the matmuls' own operands (norms, GELU, residuals, copies).
ELEMENTWISE_BYTES = {False: 160.0, True: 50.0}  # by `compile`
LOSS_BYTES_PER_LOGIT = 12.0  # about six passes over 2-byte logits: softmax, gradient, casts
LAUNCHES_PER_LAYER = {False: 90.0, True: 30.0}  # kernels, forward and backward, by `compile`
HOST_SECONDS_PER_PASS = {CardKind.cpu: 1e-3}
HOST_SECONDS_PER_PASS_ON_CARDS = 8e-3  # Python outside the layers: loop, loss, data, scaler
OPTIMIZER_BYTES_PER_PARAM = 28.0  # fused AdamW: read weight, gradient, two moments; write all but the gradient
CLIP_BYTES_PER_PARAM = 12.0  # norm reads, scaling reads and writes
CAST_BYTES_PER_PARAM = 16.0  # autocast, each pass: weight to 16 bits and its gradient back, accumulated
GRADIENT_BYTES_PER_PARAM = 4.0  # fp32, as DDP reduces them
# Measured / estimated over public runs of compiled nanoGPT-like trainers: p10 and p90.
LOW_FACTOR = 0.85
HIGH_FACTOR = 1.65


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeEstimate:
    """One optimizer step over all ranks. None: the card's rate is unknown."""

    seconds: Band | None
    terms_seconds: Mapping[str, float]  # sum to seconds.mid
    flops_per_step: float  # model FLOPs of all ranks (causal attention, no recomputation)
    peak_flops_per_second: float | None  # of all ranks, at the plan's precision
    tokens_per_second: Band | None
    mfu: float | None
    raw_seconds: float | None  # before calibration


def estimate_step_time(plan: RunPlan) -> StepTimeEstimate:
    """Compute, memory traffic, launches and communication of one step."""
    flops = float(train_flops_per_token(plan.model, plan.trainer.sequence_length) * plan.trainer.tokens_per_step)
    peak = all_ranks_peak_flops_per_second(plan)
    rates = card_rates(plan.hw, plan.trainer.precision)
    if rates is None or peak is None:
        return StepTimeEstimate(
            seconds=None,
            terms_seconds={},
            flops_per_step=flops,
            peak_flops_per_second=peak,
            tokens_per_second=None,
            mfu=None,
            raw_seconds=None,
        )
    raw_terms = step_terms_seconds(plan, rates)
    raw_seconds = sum(raw_terms.values())
    seconds = _band(plan, raw_seconds)
    scale = seconds.mid / raw_seconds
    tokens = plan.trainer.tokens_per_step
    return StepTimeEstimate(
        seconds=seconds,
        terms_seconds={name: scale * value for name, value in raw_terms.items()},
        flops_per_step=flops,
        peak_flops_per_second=peak,
        tokens_per_second=Band(
            low=tokens / seconds.high, mid=tokens / seconds.mid, high=tokens / seconds.low, source=seconds.source
        ),
        mfu=flops / (seconds.mid * peak),
        raw_seconds=raw_seconds,
    )


def all_ranks_peak_flops_per_second(plan: RunPlan) -> float | None:
    """What MFU is measured against. A cpu card is the whole processor of a node, any other card one rank."""
    peak = peak_flops_per_second(plan.hw.card, plan.trainer.precision)
    if peak is None:
        return None
    n_cards = plan.hw.n_nodes if plan.hw.card.kind is CardKind.cpu else plan.hw.world_size
    return peak * n_cards


def _band(plan: RunPlan, raw_seconds: float) -> Band:
    factor = plan.calibration.factors.get("step_seconds")
    if factor is None:
        return Band(
            low=raw_seconds * LOW_FACTOR,
            mid=raw_seconds,
            high=raw_seconds * HIGH_FACTOR,
            source="formula, uncalibrated",
        )
    return Band(
        low=raw_seconds * factor.low,
        mid=raw_seconds * factor.value,
        high=raw_seconds * factor.high,
        source=f"formula x {factor.value:.2f}, calibrated ({factor.n_runs} runs, {factor.scope})",
    )


def step_terms_seconds(plan: RunPlan, rates: CardRates) -> dict[str, float]:
    """Every term of one step, uncalibrated."""
    params = count_params(plan.model, plan.trainer.sequence_length)
    terms = micro_step_terms_seconds(plan, rates, params.total)
    micro_step_seconds = sum(terms.values())
    n_passes = plan.trainer.grad_accum_steps
    step = {name: n_passes * seconds for name, seconds in terms.items()}
    clip = CLIP_BYTES_PER_PARAM if plan.trainer.grad_clip > 0 else 0.0
    step["optimizer"] = (OPTIMIZER_BYTES_PER_PARAM + clip) * params.total / rates.bytes_per_second
    step["all_reduce"] = exposed_seconds(
        plan.hw,
        GRADIENT_BYTES_PER_PARAM * params.total,
        GRADIENT_BYTES_PER_PARAM * params.token_embedding,
        micro_step_seconds,
    )
    return step


def micro_step_terms_seconds(plan: RunPlan, rates: CardRates, n_params: int) -> dict[str, float]:
    """One rank's forward and backward pass over one micro-batch."""
    model, trainer = plan.model, plan.trainer
    n_tokens = trainer.micro_batch_size * trainer.sequence_length
    on_cpu = plan.hw.card.kind is CardKind.cpu
    matmul_rate = rates.matmul_flops_per_second_at(model.n_embd)
    attention_rate = rates.matmul_flops_per_second * (CPU_ATTENTION_FRACTION if on_cpu else ATTENTION_FRACTION)
    layers_forward = n_tokens * layer_forward_flops_per_token(model) / matmul_rate
    attention_forward = n_tokens * attention_forward_flops_per_token(model, trainer.sequence_length) / attention_rate
    elementwise_bytes = n_tokens * model.n_layer * model.n_embd * ELEMENTWISE_BYTES[trainer.compile]
    elementwise = elementwise_bytes / rates.bytes_per_second
    head = n_tokens * head_forward_flops_per_token(model) / matmul_rate
    is_checkpointed = trainer.activation_checkpointing is Checkpointing.full
    recomputed = (layers_forward + attention_forward + elementwise / FORWARD_AND_BACKWARD) if is_checkpointed else 0.0
    casts = 0.0 if trainer.precision in (Precision.fp32, Precision.tf32) else CAST_BYTES_PER_PARAM * n_params
    terms = {
        "matmul": FORWARD_AND_BACKWARD * layers_forward,
        "attention": FORWARD_AND_BACKWARD * attention_forward,
        "elementwise": elementwise + casts / rates.bytes_per_second,
        "logits_and_loss": FORWARD_AND_BACKWARD * head
        + n_tokens * model.vocab_size * LOSS_BYTES_PER_LOGIT / rates.bytes_per_second,
        "recompute": recomputed,
    }
    recompute_factor = (FORWARD_AND_BACKWARD + 1) / FORWARD_AND_BACKWARD if is_checkpointed else 1.0
    launches = LAUNCHES_PER_LAYER[trainer.compile] * model.n_layer * recompute_factor * rates.launch_seconds
    host = HOST_SECONDS_PER_PASS.get(plan.hw.card.kind, HOST_SECONDS_PER_PASS_ON_CARDS) + launches
    terms["launch_floor"] = max(0.0, host - sum(terms.values()))
    return terms
