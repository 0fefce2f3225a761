"""What does the forward pass leave for the backward pass, and what do both need while they work?

Counted from the trainer's own modules (`scripts/trace_memory.py` holds the sums against them): autograd keeps the
inputs of matmuls, norms and non-linearities. Under autocast the norm's fp32 result dies at once; only its 16-bit cast
is kept. Korthikanti et al. 2022 (arXiv:2205.05198) count 34 bytes x n_embd with dropout and 16-bit residuals; GPT-2
under autocast without dropout has 36. Fused attention keeps a log-sum-exp per head and position in place of the T x T
matrix (Dao et al. 2022, arXiv:2205.14135). Inductor keeps as much: normalised inputs in place of the norms' inputs.
"""

from __future__ import annotations

from typing import NamedTuple

from conf.choices import Family
from preflight.memory.workload import FP32_BYTES, Workload
from preflight.params import kv_dim


class Layers(NamedTuple):
    """Bytes kept for the backward pass, by part of the layer."""

    residual: int
    attention: int
    mlp: int
    norms: int


class Activations(NamedTuple):
    """Bytes of one micro-batch."""

    layer: Layers  # all that one layer keeps
    block_input: int  # the stream as it enters a block
    final_norm: int  # kept outside the blocks: the final norm's input and its output, which the head takes
    norm_output: int  # of the final norm, until the forward pass returns
    forward_working: int  # the widest moment of a block that keeps nothing
    backward_working: int  # while a layer's MLP is differentiated
    head_working: int  # the gradient that leaves the head
    logits: int  # their number


def activations_of(work: Workload) -> Activations:
    """Everything that grows with the micro-batch."""
    model, numerics = work.model, work.numerics
    n_tokens = work.n_tokens
    width, is_gpt2 = model.n_embd, model.family is Family.gpt2
    stream = numerics.residual * width
    half = numerics.compute * width
    wide = numerics.compute * model.d_ff
    masks = work.mask_bytes * width if model.dropout > 0 else 0
    statistics = FP32_BYTES * (2 if is_gpt2 else 1)  # mean and reciprocal deviation (LayerNorm), the latter (RMSNorm)
    n_kept, n_forward, n_backward = (2, 2, 1) if is_gpt2 else (4, 3, 2)  # wide tensors: GELU's two, SwiGLU's four
    norm_extra = work.norm_extra_bytes * width
    return Activations(
        layer=Layers(
            residual=n_tokens * 2 * stream,
            attention=n_tokens * (_attention_bytes(work) + work.n_extra_narrow * half + masks),
            mlp=n_tokens * (half + (n_kept + work.n_extra_wide) * wide + masks),
            norms=n_tokens * 2 * (statistics + norm_extra),
        ),
        block_input=n_tokens * stream,
        final_norm=n_tokens
        * (stream + half + statistics + norm_extra + masks),  # the embedding's dropout has a mask too
        norm_output=n_tokens * stream if numerics.casts_weights else 0,
        forward_working=n_tokens * (3 * stream + n_forward * wide),
        backward_working=n_tokens * (stream + (half if numerics.casts_weights else 0) + n_backward * wide),
        head_working=n_tokens * half,
        logits=n_tokens * model.vocab_size,
    )


def _attention_bytes(work: Workload) -> int:
    """Norm output (input of q, k, v), q, k, v, attention output (input of the projection), what softmax needs."""
    model, compute = work.model, work.numerics.compute
    softmax = _score_bytes(work) * work.sequence_length if work.stores_attention_matrix else FP32_BYTES
    shared = model.n_embd if work.repeats_kv else kv_dim(model)
    return compute * (3 * model.n_embd + 2 * shared) + softmax * model.n_head


def _score_bytes(work: Workload) -> int:
    """Softmax (fp32 under autocast); what the product with the values takes: a cast, or dropout's result; its mask."""
    numerics = work.numerics
    softmax = numerics.weight  # 16 bit only where everything is
    if work.model.dropout > 0:
        return softmax + work.mask_bytes + numerics.compute
    return softmax + (numerics.compute if numerics.casts_weights else 0)
