"""What does the forward pass leave for the backward pass, and what do both need while they work?

Counted from the trainer's own modules (`scripts/trace_memory.py` holds the sums against them): autograd keeps the
inputs of matmuls, norms and non-linearities. Under autocast the norm's fp32 result dies at once; only its 16-bit cast
is kept. Korthikanti et al. 2022 (arXiv:2205.05198) count 34 bytes x n_embd with dropout and 16-bit residuals; GPT-2
under autocast without dropout has 36. Fused attention keeps a log-sum-exp per head and position in place of the T x T
matrix (Dao et al. 2022, arXiv:2205.14135). Rotated queries and keys are new tensors beside what the matmul gave.
A frozen linear keeps no input: only its weight's gradient would need it.
"""

from __future__ import annotations

from typing import NamedTuple

from conf.choices import Activation, Norm, Positions
from preflight.memory.numerics import FP32_BYTES
from preflight.memory.workload import Workload
from preflight.params import kv_dim, n_mlp_matrices, q_dim
from preflight.plan import Checkpointing


class Layers(NamedTuple):
    """Bytes kept for the backward pass, by part of the layer."""

    residual: int
    attention: int
    mlp: int
    norms: int


class Activations(NamedTuple):
    """Bytes of one micro-batch."""

    layer: Layers  # all that one layer needs for its backward pass
    kept: Layers  # what it keeps of that; the rest is computed again
    block_input: int  # the stream as it enters a block
    final_norm: int  # kept outside the blocks: the final norm's input and its output, which the head takes
    norm_output: int  # of the final norm, until the forward pass returns
    forward_working: int  # the widest moment of a block that keeps nothing
    backward_working: int  # while a layer's MLP is differentiated
    head_working: int  # the gradient that leaves the head
    logits: int  # their number, of those that exist at once


def activations_of(work: Workload) -> Activations:
    """Everything that grows with the micro-batch."""
    model, numerics = work.model, work.numerics
    n_tokens = work.n_tokens
    stream = numerics.residual * model.n_embd
    half = numerics.compute * model.n_embd
    wide = numerics.compute * model.d_ff
    masks = work.mask_bytes * model.n_embd if model.dropout > 0 else 0
    norm = _norm_bytes(work)
    is_gated = model.activation is Activation.swiglu
    n_forward, n_backward = (3, 2) if is_gated else (2, 1)
    layer = Layers(
        residual=n_tokens * 2 * stream,
        attention=n_tokens * (_attention_bytes(work) + work.n_extra_narrow * half + masks),
        mlp=n_tokens * (_mlp_bytes(work) + masks),
        norms=n_tokens * 2 * norm,
    )
    n_at_once = min(n_tokens, work.loss_chunk_tokens or n_tokens)
    return Activations(
        layer=layer,
        kept=_kept(work, layer, n_tokens, stream),
        block_input=n_tokens * stream,
        final_norm=n_tokens * (stream + half + norm + masks),  # the embedding's dropout has a mask too
        norm_output=n_tokens * stream if numerics.casts_weights else 0,
        forward_working=n_tokens * (3 * stream + n_forward * wide),
        backward_working=n_tokens * (stream + (half if numerics.casts_weights else 0) + n_backward * wide),
        head_working=n_tokens * half,
        logits=n_at_once * model.vocab_size,
    )


def _kept(work: Workload, layer: Layers, n_tokens: int, stream: int) -> Layers:
    """`trainers.recompute`: the block's input; selectively also the results of matmuls and of fused attention."""
    if work.recompute is Checkpointing.none:
        return layer
    if work.recompute is Checkpointing.full:
        return Layers(n_tokens * stream, 0, 0, 0)
    model, compute = work.model, work.numerics.compute
    attention = compute * (q_dim(model) + 2 * kv_dim(model) + model.n_embd)
    if not work.stores_attention_matrix:
        attention += compute * q_dim(model) + FP32_BYTES * model.n_head
    mlp = compute * ((n_mlp_matrices(model) - 1) * model.d_ff + model.n_embd)
    return Layers(n_tokens * stream, n_tokens * attention, n_tokens * mlp, 0)


def _norm_bytes(work: Workload) -> int:
    """Beyond its input and output: mean and reciprocal deviation (LayerNorm), the latter alone (RMSNorm)."""
    model = work.model
    is_rms = model.norm is Norm.rmsnorm
    n_bytes = FP32_BYTES * (1 if is_rms else 2) + work.norm_extra_bytes * model.n_embd
    if is_rms and work.writes_norms_out:  # the normalised values in fp32, and where the input is not: a copy that is
        n_bytes += FP32_BYTES * model.n_embd * (1 if work.numerics.residual == FP32_BYTES else 2)
    return n_bytes


def _attention_bytes(work: Workload) -> int:
    """Norm output (input of q, k, v), q, k, v, attention output (input of the projection), what softmax needs."""
    model, compute, adapters = work.model, work.numerics.compute, work.adapters
    heads, shared = q_dim(model), kv_dim(model)
    needs_input = adapters is None or adapters.needs_norm_output
    softmax = _score_bytes(work) * work.sequence_length if work.stores_attention_matrix else FP32_BYTES
    n_channels = (model.n_embd if needs_input else 0) + 2 * heads + 2 * shared
    if model.positions is Positions.rotary or model.qk_norm:
        n_channels += heads + shared  # as rotated or normalised, beside the matmul's result that the values are part of
    if work.repeats_kv:
        n_channels += 2 * (heads - shared)
    return compute * n_channels + softmax * model.n_head + _query_key_norm_bytes(work) + _adapter_bytes(work)


def _query_key_norm_bytes(work: Workload) -> int:
    """Per-head norms of queries and keys: autocast casts their inputs to fp32; without a fused kernel results too."""
    model, numerics = work.model, work.numerics
    if not model.qk_norm:
        return 0
    n_channels = q_dim(model) + kv_dim(model)
    n_copies = int(numerics.casts_weights)
    if work.writes_norms_out:
        n_copies = 1 if numerics.compute == FP32_BYTES else 2
    return FP32_BYTES * (n_channels * n_copies + model.n_head + model.n_kv_head)


def _mlp_bytes(work: Workload) -> int:
    """Norm output, what goes up (and the gate), what the activation gives, what goes down."""
    model, numerics, adapters = work.model, work.numerics, work.adapters
    n_kept = 4 if model.activation is Activation.swiglu else 2  # GELU's input and output, SwiGLU's four
    n_bytes = numerics.compute * model.n_embd
    if adapters is not None:
        n_kept -= not adapters.needs_mlp_hidden
        n_bytes *= adapters.needs_mlp_input
    return n_bytes + (n_kept + work.n_extra_wide) * numerics.compute * model.d_ff


def _adapter_bytes(work: Workload) -> int:
    """The narrow middles; with dropout, a mask and a copy of each adapted linear's input."""
    adapters, compute = work.adapters, work.numerics.compute
    if adapters is None:
        return 0
    dropped = (compute + work.mask_bytes) * work.model.n_embd * adapters.n_adapted_inputs if adapters.has_dropout else 0
    return compute * adapters.n_ranks + dropped


def _score_bytes(work: Workload) -> int:
    """Softmax (fp32 under autocast); what the product with the values takes: a cast, or dropout's result; its mask."""
    numerics = work.numerics
    softmax = numerics.weight  # 16 bit only where everything is
    if work.model.dropout > 0:
        return softmax + work.mask_bytes + numerics.compute
    return softmax + (numerics.compute if numerics.casts_weights else 0)
