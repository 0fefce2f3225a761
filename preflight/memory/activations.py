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
from preflight.attention_blocks import n_scores
from preflight.memory.numerics import FP32_BYTES
from preflight.memory.workload import Scores, Workload
from preflight.params import head_dim, kv_dim, n_mlp_matrices, q_dim
from preflight.plan import Checkpointing

# Tensors of width d_ff at the widest moment of the MLP's forward pass, and of its backward pass beyond what it kept.
WIDE_WORKING = {
    Activation.gelu: (2, 1),
    Activation.gelu_tanh: (2, 1),
    Activation.relu2: (2, 3),
    Activation.swiglu: (3, 2),
}


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
    head_input: int  # or its gradient
    forward_working: int  # the widest moment of a block that keeps nothing
    backward_working: int  # while a layer's MLP is differentiated
    never_kept: int  # by a first block that nothing before it asks for gradients
    logits: int  # their number, of those that exist at once


def activations_of(work: Workload) -> Activations:
    """Everything that grows with the micro-batch."""
    model, numerics = work.model, work.numerics
    n_tokens = work.n_tokens
    stream, normed = numerics.residual * model.n_embd, numerics.norm * model.n_embd
    half, wide = numerics.compute * model.n_embd, numerics.compute * model.d_ff
    masks = work.mask_bytes * model.n_embd if model.dropout > 0 else 0
    norm = _norm_bytes(work)
    n_forward, n_backward = WIDE_WORKING[model.activation]
    rounded = numerics.product * model.d_ff if numerics.rounds_products else 0  # before it is fp32 again
    if work.adapters is not None:  # what goes down has two gradients, or was not kept and so frees nothing
        n_backward = max(n_backward, 2) if work.adapters.reads_mlp_hidden else n_backward + 1
    if work.adapters is not None or model.activation is Activation.relu2:  # a later moment is the larger one
        rounded = 0
    table = _rotation_elements(work)
    copies = 2 * numerics.compute * table if numerics.compute < FP32_BYTES else 0  # one for queries and one for keys
    layer = Layers(
        residual=n_tokens * 2 * normed,
        attention=n_tokens * (_attention_bytes(work) + work.n_extra_narrow * half + masks) + copies,
        mlp=n_tokens * (_mlp_bytes(work) + masks),
        norms=n_tokens * 2 * norm,
    )
    reads_head_input = not work.loss_chunk_tokens and (work.adapters is None or work.adapters.n_trained_rest > 0)
    n_at_once = min(n_tokens, work.loss_chunk_tokens or n_tokens)
    return Activations(
        layer=layer,
        kept=_kept(work, layer, n_tokens, stream),
        block_input=n_tokens * stream,
        # the embedding's dropout has a mask too
        final_norm=n_tokens * (normed + norm + masks + (half if reads_head_input else 0)) + FP32_BYTES * table,
        norm_output=n_tokens * normed if numerics.casts_norm_output or work.loss_chunk_tokens else 0,
        head_input=n_tokens * half,
        forward_working=n_tokens * (3 * normed + n_forward * wide),
        backward_working=n_tokens
        * (normed + (half if numerics.casts_norm_output else 0) + n_backward * wide + rounded),
        never_kept=n_tokens * (normed + norm) if _starts_frozen(work) else 0,
        logits=n_at_once * model.vocab_size,
    )


def _starts_frozen(work: Workload) -> bool:
    """Embeddings that are not trained: the first norm's backward pass is left out, unless its block is run again."""
    adapters = work.adapters
    return adapters is not None and adapters.n_trained_rest == 0 and work.recompute is Checkpointing.none


def _kept(work: Workload, layer: Layers, n_tokens: int, stream: int) -> Layers:
    """`trainers.recompute`: the block's input; selectively also the results of matmuls and of fused attention."""
    if work.recompute is Checkpointing.none:
        return layer
    if work.recompute is Checkpointing.full:
        return Layers(n_tokens * stream, 0, 0, 0)
    model, compute = work.model, work.numerics.product
    attention = compute * (q_dim(model) + 2 * kv_dim(model) + model.n_embd)
    if work.attention is Scores.none:
        attention += work.numerics.compute * q_dim(model) + FP32_BYTES * model.n_head
    mlp = compute * ((n_mlp_matrices(model) - 1) * model.d_ff + model.n_embd)
    if work.adapters is not None:
        attention += compute * work.adapters.n_attention_products
        mlp += compute * work.adapters.n_mlp_products
    return Layers(n_tokens * stream, n_tokens * attention, n_tokens * mlp, 0)


def _norm_bytes(work: Workload) -> int:
    """Beyond its input and output: mean and reciprocal deviation (LayerNorm), the latter alone (RMSNorm)."""
    model = work.model
    is_rms = model.norm is Norm.rmsnorm
    n_bytes = FP32_BYTES * (1 if is_rms else 2) + work.norm_extra_bytes * model.n_embd
    if is_rms and work.writes_norms_out:
        if work.adapters is None:  # the normalised values in fp32, which the weight's gradient needs
            n_bytes += FP32_BYTES * model.n_embd
        n_bytes += (FP32_BYTES - work.numerics.norm) * model.n_embd  # a 16-bit input is kept as an fp32 copy
    return n_bytes


def _attention_bytes(work: Workload) -> int:
    """Norm output (input of q, k, v), q, k, v, attention output (input of the projection), what softmax needs."""
    model, compute = work.model, work.numerics.compute
    heads, shared = q_dim(model), kv_dim(model)
    n_channels = 2 * heads + 2 * shared
    copies_values = work.attention is Scores.blocks and work.n_sequences > 1
    if not copies_values and (model.positions is Positions.rotary or model.qk_norm):
        n_channels += heads + shared  # as rotated or normalised, beside the matmul's result that the values are part of
    if work.repeats_kv:
        n_channels += 2 * (heads - shared)
    n_readers = 1 if work.adapters is None else work.adapters.n_norm_readers
    inputs = _norm_outputs_bytes(work, n_readers) + _adapters_bytes(work)
    rounds = work.attention is Scores.blocks and work.numerics.rounds_products
    if (copies_values or rounds) and model.qk_norm and compute == FP32_BYTES:
        inputs += compute * (heads + 2 * shared)  # the norms keep what the matmul gave, values and all
    if work.attention is not Scores.none and work.adapters is not None and not work.adapters.reads_attention:
        inputs -= compute * heads  # only a fused kernel's backward pass needs it
    if rounds:  # queries, keys and values are copies
        n_channels, inputs = heads, inputs + work.numerics.product * (heads + 2 * shared)
    return inputs + compute * n_channels + _scores_bytes(work) * model.n_head + _query_key_norm_bytes(work)


def _norm_outputs_bytes(work: Workload, n_readers: int) -> int:
    """What matmuls keep of a norm's output: the same, or where it has to be cast each its own."""
    n_copies = n_readers if work.numerics.casts_norm_output else min(1, n_readers)
    adapters = work.adapters
    if adapters is not None and adapters.has_dropout:
        return n_readers * (work.numerics.compute + work.mask_bytes) * work.model.n_embd
    return n_copies * work.numerics.compute * work.model.n_embd


def _adapters_bytes(work: Workload) -> int:
    """The narrow middles."""
    adapters = work.adapters
    return 0 if adapters is None else work.numerics.compute * adapters.n_narrow


def _rotation_elements(work: Workload) -> int:
    """Cosines and sines of every position, in fp32 and the same for all layers."""
    model = work.model
    return 0 if model.positions is Positions.learned else 2 * work.sequence_length * head_dim(model)


def _query_key_norm_bytes(work: Workload) -> int:
    """Per-head norms of queries and keys work in the matmuls' type; without a fused kernel fp32 inputs and results."""
    model, numerics = work.model, work.numerics
    if not model.qk_norm:
        return 0
    n_channels = q_dim(model) + kv_dim(model)
    n_copies = 0
    if work.writes_norms_out:
        n_copies = int(work.adapters is None) + (numerics.compute != FP32_BYTES)
    return FP32_BYTES * (n_channels * n_copies + model.n_head + model.n_kv_head)


def _mlp_bytes(work: Workload) -> int:
    """Norm output, what goes up (and the gate), what the activation gives, what goes down."""
    model, adapters = work.model, work.adapters
    is_gated = model.activation is Activation.swiglu
    n_readers = 2 if is_gated else 1
    n_kept = (4 if is_gated else 2) + work.n_extra_wide  # GELU's input and output, SwiGLU's four
    if adapters is not None:
        n_readers = adapters.n_mlp_readers
        n_kept -= not adapters.reads_mlp_hidden
    return _norm_outputs_bytes(work, n_readers) + n_kept * work.numerics.compute * model.d_ff


def _scores_bytes(work: Workload) -> int:
    """Of one head and position, mean over the sequence."""
    if work.attention is Scores.none:
        return FP32_BYTES
    numerics, length = work.numerics, work.sequence_length
    has_dropout = work.model.dropout > 0
    if work.attention is Scores.blocks:
        return (numerics.product + has_dropout) * n_scores(length) // length
    # softmax; what the product with the values takes: a cast, or dropout's result; its mask
    if has_dropout:
        return (numerics.softmax + work.mask_bytes + numerics.compute) * length
    return (numerics.softmax + (numerics.compute if numerics.compute != numerics.softmax else 0)) * length
