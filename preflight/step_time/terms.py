"""Which terms make up one optimizer step? Roofline by term (Williams et al. 2009); the terms add up.

PyTorch runs one kernel after the other, so matmuls (at the card's sustained rate for their width) and memory traffic
add; the host's launches run beside them and show where the card would be faster than its host; gradients travel as far
as the backward pass does not hide them. Not modelled, but in the band: data stalls, throttling, slow nodes.
"""

from __future__ import annotations

from preflight.params import count_params
from preflight.plan import Checkpointing, Precision, RunPlan
from preflight.step_time.card_rates import CardRates
from preflight.step_time.communication import exposed_seconds
from preflight.step_time.constants import StepConstants
from preflight.step_time.flops import (
    BACKWARD_PER_FORWARD,
    attention_forward_flops_per_token,
    head_forward_flops_per_token,
    layer_forward_flops_per_token,
)
from preflight.step_time.implementation import Implementation

FORWARD_AND_BACKWARD = 1 + BACKWARD_PER_FORWARD
HALF_PRECISIONS = (Precision.bf16, Precision.fp16)
HOST_OVERLAP_POWER = 3.0  # card and host overlap, but for the ends of a pass: a smooth maximum


def step_terms_seconds(
    plan: RunPlan, rates: CardRates, constants: StepConstants, code: Implementation
) -> dict[str, float]:
    """Every term of one step, uncalibrated."""
    trainer = plan.trainer
    params = count_params(plan.model, trainer.sequence_length)
    one_pass = pass_terms_seconds(plan, rates, constants, code)
    step = {name: trainer.grad_accum_steps * seconds for name, seconds in one_pass.items()}
    clip = constants.clip_bytes_per_param if trainer.grad_clip > 0 else 0.0
    n_own_params = params.total / plan.hw.world_size if code.sharded else params.total
    optimizer_bytes = (constants.optimizer_bytes_per_param + clip) * n_own_params if code.has_optimizer else 0.0
    step["optimizer"] = optimizer_bytes / rates.bytes_per_second
    step["all_reduce"] = exposed_seconds(
        plan.hw, params.total, params.token_embedding, sum(one_pass.values()), trainer.grad_accum_steps, code
    )
    return step


def pass_terms_seconds(
    plan: RunPlan, rates: CardRates, constants: StepConstants, code: Implementation
) -> dict[str, float]:
    """One rank's forward and backward pass over one micro-batch."""
    model, trainer = plan.model, plan.trainer
    n_tokens = trainer.micro_batch_size * trainer.sequence_length
    is_slowed = code.sharded and plan.hw.world_size > 1
    flops_per_second = rates.matmul_flops_per_second_at(model.n_embd) * (
        constants.sharding_fraction if is_slowed else 1.0
    )
    layers_forward = n_tokens * layer_forward_flops_per_token(model) / flops_per_second
    attention_forward = _attention_forward_seconds(plan, n_tokens, rates, constants, code)
    elementwise = _elementwise_seconds(plan, n_tokens, rates, constants)
    head_forward = n_tokens * head_forward_flops_per_token(model) / flops_per_second
    loss_bytes = constants.compiled_loss_bytes if trainer.compile else constants.eager_loss_bytes
    loss = n_tokens * model.vocab_size * loss_bytes / rates.bytes_per_second
    recomputed_fraction = _recomputed_fraction(plan, code)
    terms = {
        "matmul": FORWARD_AND_BACKWARD * layers_forward,
        "attention": FORWARD_AND_BACKWARD * attention_forward,
        "elementwise": elementwise + _casts_seconds(plan, rates, constants),
        "logits_and_loss": FORWARD_AND_BACKWARD * head_forward + loss,
        "recompute": recomputed_fraction * (layers_forward + attention_forward + elementwise / FORWARD_AND_BACKWARD),
    }
    card = sum(terms.values())
    host = _host_seconds(plan, constants, recomputed_fraction)
    both = (card**HOST_OVERLAP_POWER + host**HOST_OVERLAP_POWER) ** (1 / HOST_OVERLAP_POWER)
    terms["launch_floor"] = max(0.0, both - card)  # rounding
    return terms


def _recomputed_fraction(plan: RunPlan, code: Implementation) -> float:
    if code.recomputed_fraction is not None:
        return code.recomputed_fraction
    return 1.0 if plan.trainer.activation_checkpointing is Checkpointing.full else 0.0


def _attention_forward_seconds(
    plan: RunPlan, n_tokens: int, rates: CardRates, constants: StepConstants, code: Implementation
) -> float:
    """Matmuls of the scores, and the softmax: inside the kernel at the rate of fp32 arithmetic, else through memory."""
    model, length = plan.model, plan.trainer.sequence_length
    causal_flops = n_tokens * attention_forward_flops_per_token(model, length)
    n_scores = n_tokens * model.n_layer * model.n_head * length
    if code.fused_attention:
        matmul = causal_flops / rates.attention_flops_per_second
        softmax = constants.softmax_flops_per_score * n_scores / 2 / rates.fp32_flops_per_second
        blocks = 1 + constants.attention_block_tokens / length
        return blocks * code.fused_attention_slowdown * (matmul + softmax)
    matmul = 2 * causal_flops / (constants.unfused_attention_fraction * rates.matmul_flops_per_second)
    return matmul + code.score_bytes * n_scores / FORWARD_AND_BACKWARD / rates.bytes_per_second


def _elementwise_seconds(plan: RunPlan, n_tokens: int, rates: CardRates, constants: StepConstants) -> float:
    """Forward and backward traffic of all layers besides matmuls and attention."""
    n_elements = n_tokens * plan.model.n_layer * plan.model.n_embd
    n_bytes = constants.compiled_bytes if plan.trainer.compile else constants.eager_bytes
    if plan.trainer.precision not in HALF_PRECISIONS:
        n_bytes *= constants.fp32_bytes_factor
    return n_elements * n_bytes / rates.bytes_per_second


def _casts_seconds(plan: RunPlan, rates: CardRates, constants: StepConstants) -> float:
    """Autocast's 16-bit copies of the layers' weights, and their gradients."""
    if plan.trainer.precision not in HALF_PRECISIONS:
        return 0.0
    n_weights = layer_forward_flops_per_token(plan.model) / 2
    return constants.cast_bytes_per_param * n_weights / rates.bytes_per_second


def _host_seconds(plan: RunPlan, constants: StepConstants, recomputed_fraction: float) -> float:
    """Python, autograd and kernel launches of one pass."""
    per_layer = constants.compiled_layer_seconds if plan.trainer.compile else constants.eager_layer_seconds
    n_passes = (FORWARD_AND_BACKWARD + recomputed_fraction) / FORWARD_AND_BACKWARD
    return constants.pass_seconds + plan.model.n_layer * per_layer * n_passes
