"""What does the forward pass leave for the backward pass? Bytes of one token in one layer, by part of the layer.

Counted from the trainer's own modules (`scripts/trace_memory.py` holds the sums against them): autograd keeps the
inputs of matmuls, norms and non-linearities. Under autocast the norm's fp32 result dies at once; only its 16-bit cast
is kept. Korthikanti et al. 2022 (arXiv:2205.05198) count 34 bytes x n_embd with dropout and 16-bit residuals; GPT-2
under autocast without dropout has 36. Fused attention keeps a log-sum-exp per head and position in place of the T x T
matrix (Dao et al. 2022, arXiv:2205.14135).
"""

from __future__ import annotations

from typing import NamedTuple

from conf.schema import Family
from preflight.memory_workload import FP32_BYTES, Workload
from preflight.params import kv_dim


class LayerBytes(NamedTuple):
    """By part of the layer."""

    residual: int
    attention: int
    mlp: int
    norms: int


def saved(work: Workload) -> LayerBytes:
    """What the whole forward pass keeps: every layer, or with recomputation every block's input; and the final norm."""
    n_layer = work.model.n_layer
    layers = saved_inputs(work, n_layer) if work.recomputes_blocks else _whole_layers(work, n_layer)
    return layers._replace(residual=layers.residual + outer_bytes(work) * work.n_tokens)


def saved_inputs(work: Workload, n_layer: int) -> LayerBytes:
    """The stream as it enters each of `n_layer` blocks."""
    return LayerBytes(n_layer * work.numerics.residual * work.model.n_embd * work.n_tokens, 0, 0, 0)


def saved_with_one_whole(work: Workload, n_layer: int) -> LayerBytes:
    """When a block's backward begins: with recomputation that block is whole again, the others are inputs."""
    if not work.recomputes_blocks:
        return _whole_layers(work, n_layer)
    layer = _whole_layers(work, 1)
    return layer._replace(residual=layer.residual + saved_inputs(work, n_layer - 1).residual)


def _whole_layers(work: Workload, n_layer: int) -> LayerBytes:
    n_rows = n_layer * work.n_tokens
    return LayerBytes(
        residual=n_rows * residual_bytes(work),
        attention=n_rows * attention_bytes(work),
        mlp=n_rows * mlp_bytes(work),
        norms=n_rows * norm_bytes(work),
    )


def attention_bytes(work: Workload) -> int:
    """Norm output (input of q, k, v), q, k, v, attention output (input of the projection), what softmax needs."""
    model, compute = work.model, work.numerics.compute
    saved = compute * (3 * model.n_embd + 2 * kv_dim(model))
    saved += attention_matrix_bytes(work) if work.stores_attention_matrix else FP32_BYTES * model.n_head
    return saved + dropout_bytes(work)


def attention_matrix_bytes(work: Workload) -> int:
    """Softmax in fp32, and its cast for the product with the values where that runs in 16 bit."""
    compute = work.numerics.compute
    per_score = FP32_BYTES + (compute if work.numerics.casts_weights else 0)
    if work.model.dropout > 0:
        per_score += work.mask_bytes + compute
    return per_score * work.model.n_head * work.sequence_length


def mlp_bytes(work: Workload) -> int:
    """Norm output, and what the non-linearity takes and gives: GELU two wide tensors, SwiGLU four."""
    model, compute = work.model, work.numerics.compute
    n_wide = 2 if model.family is Family.gpt2 else 4
    return compute * (model.n_embd + n_wide * model.d_ff) + dropout_bytes(work)


def norm_bytes(work: Workload) -> int:
    """Two norms: mean and reciprocal deviation each (LayerNorm), the latter alone (RMSNorm)."""
    n_statistics = 2 if work.model.family is Family.gpt2 else 1
    return 2 * n_statistics * FP32_BYTES


def residual_bytes(work: Workload) -> int:
    """The inputs of the two norms."""
    return 2 * work.numerics.residual * work.model.n_embd


def dropout_bytes(work: Workload) -> int:
    """One mask."""
    return work.mask_bytes * work.model.n_embd if work.model.dropout > 0 else 0


def outer_bytes(work: Workload) -> int:
    """Outside the blocks: the final norm's input and its output, which the head takes."""
    return (work.numerics.residual + work.numerics.compute) * work.model.n_embd + norm_bytes(work) // 2


def backward_working_bytes(work: Workload) -> int:
    """While the last layer's MLP is differentiated: the gradient of the stream, its cast, and the wide gradients."""
    numerics, model = work.numerics, work.model
    gradient = (numerics.residual + (numerics.compute if numerics.casts_weights else 0)) * model.n_embd
    n_wide = 1 if model.family is Family.gpt2 else 2
    return gradient + n_wide * numerics.compute * model.d_ff


def no_grad_working_bytes(work: Workload) -> int:
    """The widest moment of a block when nothing is kept: stream before and after attention, norm output, wide pair."""
    n_wide = 2 if work.model.family is Family.gpt2 else 3
    numerics = work.numerics
    return 3 * numerics.residual * work.model.n_embd + n_wide * numerics.compute * work.model.d_ff
