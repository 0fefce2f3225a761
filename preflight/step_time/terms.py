"""Which terms make up one optimizer step? Roofline by term (Williams et al. 2009); the terms add up.

PyTorch runs one kernel after the other, so matmuls (at the card's sustained rate for their width) and memory traffic
add; the host's launches run beside them and show where the card would be faster than its host; gradients travel as far
as the backward pass does not hide them. Not modelled, but in the band: data stalls, throttling, slow nodes.
"""

from __future__ import annotations

from math import ceil

from conf.choices import Adapter, Attention, Parallel
from preflight.attention_blocks import n_scores as block_scores
from preflight.hw_plan import CardKind
from preflight.params import adapter_params, count_params
from preflight.plan import Checkpointing, Precision, RunPlan
from preflight.step_time.card_rates import CardRates
from preflight.step_time.communication import exposed_seconds
from preflight.step_time.constants import StepConstants
from preflight.step_time.flops import (
    BACKWARD_PER_FORWARD,
    FLOPS_PER_MULTIPLY_ADD,
    attention_forward_flops_per_token,
    head_forward_flops_per_token,
    layer_forward_flops_per_token,
)
from preflight.step_time.implementation import Implementation
from preflight.step_time.optimizer import optimizer_seconds

FORWARD_AND_BACKWARD = 1 + BACKWARD_PER_FORWARD
FROZEN_FORWARD_AND_BACKWARD = 2  # a frozen weight has no gradient of its own
HALF_PRECISIONS = (Precision.bf16, Precision.fp16, Precision.bf16_pure)
ALIGNED_VALUES = 8  # of 2 bytes (NVIDIA's Matrix Multiplication Background User's Guide, tensor core requirements)
UNPACKED_BYTES = 0.5 + 2 + 2  # NF4 read, 16 bits written, and read by the matmul
PURE_BYTES_FACTOR = 0.6  # the residual stream, half of the traffic, in 2 bytes in place of 4; norms as before
CHUNK_SUM_BYTES = 16.0  # a chunk of fp32 sums written, read, added to the whole
BUCKET_COPIES_BYTES = 16.0  # a gradient into its bucket and back
VALUE_BYTES = (2.0, 4.0)  # in 16 bits; in fp32
# Dropout, a value: read, written, its mask a byte, and all that again for the gradient. In our blocks of scores mask
# and factor come one after the other, once for the weights and once for their gradient (`trainers.attention`).
DROPOUT_BYTES = (10.0, 18.0)
SCORE_DROPOUT_BYTES = (23.0, 43.0)
FUSED_DROPOUT_BYTES = 2.0  # inside another kernel: the mask written and read
DROPOUTS_PER_LAYER = 2  # what attention and the MLP add to the residual stream
HOST_OVERLAP_POWER = 3.0  # card and host overlap, but for the ends of a pass: a smooth maximum


def step_terms_seconds(
    plan: RunPlan, rates: CardRates, constants: StepConstants, code: Implementation
) -> dict[str, float]:
    """Every term of one step, uncalibrated."""
    trainer = plan.trainer
    one_pass = pass_terms_seconds(plan, rates, constants, code)
    step = {name: trainer.grad_accum_steps * seconds for name, seconds in one_pass.items()}
    n_sharing = plan.hw.world_size if code.sharded or trainer.parallel is not Parallel.ddp else 1
    n_trained = trained_params(plan)
    step["optimizer"] = optimizer_seconds(plan, n_trained, n_sharing, rates, constants) if code.has_optimizer else 0.0
    step["all_reduce"] = exposed_seconds(plan, n_trained, sum(one_pass.values()), code)
    if plan.hw.world_size > 1 and not trainer.bucket_views and trainer.parallel in (Parallel.ddp, Parallel.zero1):
        step["all_reduce"] += BUCKET_COPIES_BYTES * n_trained / rates.bytes_per_second
    return step


def trained_params(plan: RunPlan) -> int:
    """Those that have gradients."""
    trainer = plan.trainer
    if trainer.adapter is not Adapter.none:
        return adapter_params(plan.model, trainer.lora_targets, trainer.lora_rank)
    return count_params(plan.model, trainer.sequence_length).total


def pass_terms_seconds(
    plan: RunPlan, rates: CardRates, constants: StepConstants, code: Implementation
) -> dict[str, float]:
    """One rank's forward and backward pass over one micro-batch."""
    model, trainer = plan.model, plan.trainer
    n_tokens = trainer.micro_batch_size * trainer.sequence_length
    is_slowed = plan.hw.world_size > 1 and (code.sharded or trainer.parallel in (Parallel.zero2, Parallel.zero3))
    flops_per_second = rates.matmul_flops_per_second_at(model.n_embd) * (
        constants.sharding_fraction if is_slowed else 1.0
    )
    layers_forward = n_tokens * layer_forward_flops_per_token(model) / flops_per_second
    attention_forward = _attention_forward_seconds(plan, n_tokens, rates, constants, code)
    elementwise = _elementwise_seconds(plan, n_tokens, rates, constants, code)
    dropout_forward = _score_dropout_forward_seconds(plan, n_tokens, rates, constants, code)
    residual_dropout = _residual_dropout_seconds(plan, n_tokens, rates, constants, code)
    n_products = FORWARD_AND_BACKWARD if trainer.adapter is Adapter.none else FROZEN_FORWARD_AND_BACKWARD
    terms = {
        "matmul": n_products * layers_forward,
        "attention": FORWARD_AND_BACKWARD * attention_forward,
        "elementwise": elementwise + _weights_seconds(plan, rates, constants),
        "logits_and_loss": _head_seconds(plan, n_tokens, n_products, flops_per_second, rates, constants, code),
        "dropout": FORWARD_AND_BACKWARD * dropout_forward + residual_dropout,
        "recompute": _recomputed_seconds(
            plan, code, layers_forward, attention_forward + dropout_forward, elementwise + residual_dropout
        ),
        "adapters": _adapters_seconds(plan, n_tokens, rates),
    }
    card = sum(terms.values())
    host = _host_seconds(plan, constants, _recomputed_fraction(plan, code))
    if plan.hw.card.kind is CardKind.cpu:  # it is its own host: nothing runs beside it
        both = card + host
    else:
        both = (card**HOST_OVERLAP_POWER + host**HOST_OVERLAP_POWER) ** (1 / HOST_OVERLAP_POWER)
    terms["launch_floor"] = max(0.0, both - card)  # rounding
    return terms


def _recomputed_fraction(plan: RunPlan, code: Implementation) -> float:
    if code.recomputed_fraction is not None:
        return code.recomputed_fraction
    return 1.0 if plan.trainer.activation_checkpointing is Checkpointing.full else 0.0


def _recomputed_seconds(
    plan: RunPlan, code: Implementation, products: float, attention: float, elementwise: float
) -> float:
    """Whole blocks, or what is cheap: selective recomputation keeps the results of matmuls and of fused attention."""
    once = elementwise / FORWARD_AND_BACKWARD
    if code.recomputed_fraction is None and plan.trainer.activation_checkpointing is Checkpointing.selective:
        return once if _is_fused(plan, code) else once + attention
    return _recomputed_fraction(plan, code) * (products + attention + once)


def _head_seconds(
    plan: RunPlan,
    n_tokens: int,
    n_products: int,
    flops_per_second: float,
    rates: CardRates,
    constants: StepConstants,
    code: Implementation,
) -> float:
    """The logits and what the loss does with them. Tensor cores want rows of whole 16 bytes: 50,257 is no such row."""
    trainer, vocab_size = plan.trainer, plan.model.vocab_size
    fits = vocab_size % ALIGNED_VALUES == 0 or trainer.precision not in HALF_PRECISIONS
    forward = n_tokens * head_forward_flops_per_token(plan.model) / flops_per_second
    loss_bytes = constants.compiled_loss_bytes if trainer.compile and code.compiles_loss else constants.eager_loss_bytes
    loss = n_tokens * vocab_size * loss_bytes / rates.bytes_per_second
    if trainer.loss_chunk_tokens:  # the sum of the weight's gradient is read and written for every chunk
        n_chunks = ceil(n_tokens / trainer.loss_chunk_tokens)
        loss += n_chunks * CHUNK_SUM_BYTES * vocab_size * plan.model.n_embd / rates.bytes_per_second
    return n_products * forward / (1.0 if fits else constants.unaligned_matmul_fraction) + loss


def _adapters_seconds(plan: RunPlan, n_tokens: int, rates: CardRates) -> float:
    """Low-rank updates: matmuls as narrow as their rank, forward and backward."""
    trainer = plan.trainer
    if trainer.adapter is Adapter.none:
        return 0.0
    n_params = adapter_params(plan.model, trainer.lora_targets, trainer.lora_rank)
    flops = FORWARD_AND_BACKWARD * FLOPS_PER_MULTIPLY_ADD * n_params * n_tokens
    return flops / rates.matmul_flops_per_second_at(trainer.lora_rank)


def _attention_forward_seconds(
    plan: RunPlan, n_tokens: int, rates: CardRates, constants: StepConstants, code: Implementation
) -> float:
    """Matmuls of the scores, and the softmax: inside the kernel at the rate of fp32 arithmetic, else through memory."""
    model, length = plan.model, plan.trainer.sequence_length
    causal_flops = n_tokens * attention_forward_flops_per_token(model, length)
    n_scores = n_tokens * model.n_layer * model.n_head * length
    if _is_fused(plan, code):
        matmul = causal_flops / rates.attention_flops_per_second
        softmax = constants.softmax_flops_per_score * n_scores / 2 / rates.fp32_flops_per_second
        return _blocks(plan, constants, code) * (matmul + softmax)
    computed, score_bytes = 1.0, code.score_bytes  # of the square that half of a mask leaves empty
    if code.fused_attention:
        computed, score_bytes = _computed_fraction(plan), constants.eager_score_bytes
    matmul = 2 * computed * causal_flops / (constants.unfused_attention_fraction * rates.matmul_flops_per_second)
    return matmul + computed * score_bytes * n_scores / FORWARD_AND_BACKWARD / rates.bytes_per_second


def _is_fused(plan: RunPlan, code: Implementation) -> bool:
    """PyTorch's kernel for processors has no dropout: it computes the whole square instead."""
    is_kernel = code.fused_attention and plan.trainer.attention is Attention.sdpa
    return is_kernel and not (plan.model.dropout > 0 and _is_processor(plan))


def _blocks(plan: RunPlan, constants: StepConstants, code: Implementation) -> float:
    """How much longer the fused kernel takes than its arithmetic."""
    return (1 + constants.attention_block_tokens / plan.trainer.sequence_length) * code.fused_attention_slowdown


def _computed_fraction(plan: RunPlan) -> float:
    """Of the square of scores, by our own attention in blocks of queries."""
    length = plan.trainer.sequence_length
    return block_scores(length) / length**2 if plan.trainer.attention is Attention.eager else 1.0


def _score_dropout_forward_seconds(
    plan: RunPlan, n_tokens: int, rates: CardRates, constants: StepConstants, code: Implementation
) -> float:
    """A third of what dropout of the attention weights takes. Foreign code that writes scores out: in their bytes."""
    model, length = plan.model, plan.trainer.sequence_length
    if model.dropout == 0 or not code.fused_attention:
        return 0.0
    n_scores = n_tokens * model.n_layer * model.n_head * length
    if _is_fused(plan, code):
        flops = constants.fused_random_flops * n_scores / 2
        return _blocks(plan, constants, code) * flops / rates.fp32_flops_per_second
    n_bytes = _of_values(plan, SCORE_DROPOUT_BYTES if plan.trainer.attention is Attention.eager else DROPOUT_BYTES)
    both = n_bytes / rates.bytes_per_second + constants.random_seconds
    return _computed_fraction(plan) * both * n_scores / FORWARD_AND_BACKWARD


def _is_processor(plan: RunPlan) -> bool:
    return plan.hw.card.kind is CardKind.cpu


def _of_values(plan: RunPlan, half_and_single_bytes: tuple[float, float]) -> float:
    return half_and_single_bytes[plan.trainer.precision not in HALF_PRECISIONS]


def _residual_dropout_seconds(
    plan: RunPlan, n_tokens: int, rates: CardRates, constants: StepConstants, code: Implementation
) -> float:
    """What attention, the MLP and the embedding add to the residual stream, in kernels of its own or inside others."""
    model = plan.model
    if model.dropout == 0:
        return 0.0
    n_values = n_tokens * model.n_embd * (DROPOUTS_PER_LAYER * model.n_layer + 1)
    if (plan.trainer.compile and not _is_processor(plan)) or code.fused_dropout:
        arithmetic = constants.compiled_random_flops / rates.fp32_flops_per_second
        return n_values * (FUSED_DROPOUT_BYTES / rates.bytes_per_second + arithmetic)
    return n_values * (_of_values(plan, DROPOUT_BYTES) / rates.bytes_per_second + constants.random_seconds)


def _elementwise_seconds(
    plan: RunPlan, n_tokens: int, rates: CardRates, constants: StepConstants, code: Implementation
) -> float:
    """Forward and backward traffic of all layers besides matmuls and attention."""
    n_elements = n_tokens * plan.model.n_layer * plan.model.n_embd
    n_bytes = constants.compiled_bytes if plan.trainer.compile else constants.eager_bytes
    if plan.trainer.precision not in HALF_PRECISIONS:
        n_bytes *= constants.fp32_bytes_factor
    if plan.trainer.precision is Precision.bf16_pure:
        n_bytes *= PURE_BYTES_FACTOR
    if not plan.trainer.compile:
        n_bytes += code.elementary_accesses * _of_values(plan, VALUE_BYTES)
    return n_elements * n_bytes / rates.bytes_per_second


def _weights_seconds(plan: RunPlan, rates: CardRates, constants: StepConstants) -> float:
    """Autocast's 16-bit copies of the layers' weights, and their gradients; frozen 4-bit ones are unpacked twice."""
    trainer = plan.trainer
    n_weights = layer_forward_flops_per_token(plan.model) / FLOPS_PER_MULTIPLY_ADD
    if trainer.adapter is Adapter.qlora:
        return FROZEN_FORWARD_AND_BACKWARD * UNPACKED_BYTES * n_weights / rates.bytes_per_second
    if trainer.adapter is Adapter.lora or trainer.precision not in (Precision.bf16, Precision.fp16):
        return 0.0
    return constants.cast_bytes_per_param * n_weights / rates.bytes_per_second


def _host_seconds(plan: RunPlan, constants: StepConstants, recomputed_fraction: float) -> float:
    """Python, autograd and kernel launches of one pass."""
    measured = plan.hw.measured if plan.hw.card.kind is not CardKind.cpu else None
    eager = (measured.layer_seconds if measured is not None else None) or constants.eager_layer_seconds
    per_layer = constants.compiled_layer_seconds if plan.trainer.compile else eager
    if _has_threads_to_wake(plan):
        per_layer += constants.waking_layer_seconds
    n_passes = (FORWARD_AND_BACKWARD + recomputed_fraction) / FORWARD_AND_BACKWARD
    of_the_pass = (measured.pass_seconds if measured is not None else None) or constants.pass_seconds
    return of_the_pass + plan.model.n_layer * per_layer * n_passes


def _has_threads_to_wake(plan: RunPlan) -> bool:
    """The ranks of a node share its cores (`trainers.distributed`); whose number is unknown has many."""
    n_cores = plan.hw.n_cpu_cores
    return n_cores is None or n_cores // plan.hw.n_gpus_per_node > 1
