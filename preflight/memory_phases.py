"""Which tensors live at the same time? A step's, an evaluation's and a checkpoint's moments, term by term.

The peak is the largest of them. GPT-2-sized models peak when the loss is differentiated (the logits), large models with
few tokens at the optimizer step or at the end of the backward pass.
"""

from __future__ import annotations

from preflight import memory_activations as activations
from preflight.memory_workload import Workload
from preflight.params import count_params, matmul_params

Terms = dict[str, int]
TOKEN_BYTES = 8  # int64
N_BATCHES = 2  # the one in work and the one fetched for the next pass
N_MOMENTS = 2  # Adam's m and v

# What grows with the micro-batch; the rest depends on the model alone.
TOKEN_TERMS = (
    "inputs",
    "activations_residual",
    "activations_attention",
    "activations_mlp",
    "activations_norms",
    "working_tensors",
    "logits_and_loss",
)


def phase_terms(work: Workload) -> dict[str, Terms]:
    """Every phase's tensors in bytes. Steady state: Adam's moments exist."""
    numerics, model = work.numerics, work.model
    n_params = count_params(model, work.sequence_length).total
    n_tokens = work.n_tokens
    weights = numerics.weight * n_params
    resident = {
        "weights": weights,
        "optimizer_states": N_MOMENTS * weights,
        "inputs": 2 * N_BATCHES * TOKEN_BYTES * n_tokens,
    }
    kept = weights if work.keeps_gradients else 0
    head = model.vocab_size * model.n_embd
    casts = numerics.compute * matmul_params(model) if numerics.casts_weights else 0
    head_cast = numerics.compute * head if numerics.casts_weights else 0
    saved = _saved(work)
    loss_casts = head_cast if work.recomputes_blocks else casts
    return {
        "forward": resident
        | saved
        | {
            "gradients": kept,
            "weight_casts": casts,
            "working_tensors": _norm_output(work),
            "logits_and_loss": _loss(work, numerics.loss_forward_bytes_per_logit),
        },
        "loss_backward": resident
        | saved
        | {
            "gradients": kept,
            "weight_casts": loss_casts,
            "logits_and_loss": _loss(work, numerics.loss_backward_bytes_per_logit),
        },
        "head_backward": resident
        | saved
        | {
            "gradients": kept,
            "weight_casts": loss_casts,
            "working_tensors": numerics.compute * model.n_embd * n_tokens,
            "gradients_in_flight": numerics.compute * head,
            "logits_and_loss": numerics.compute * model.vocab_size * n_tokens,
        },
        "layer_backward": resident
        | _saved_for_layers(work)
        | {
            "gradients": kept if work.keeps_gradients else _head_gradient(work),
            "weight_casts": 0 if work.recomputes_blocks else casts - head_cast,
            "working_tensors": activations.backward_working_bytes(work) * n_tokens,
            "gradients_in_flight": _layer_gradients_in_flight(work),
        },
        "backward_end": resident
        | {
            "gradients": weights,
            "working_tensors": numerics.residual * model.n_embd * n_tokens,
            "gradients_in_flight": _embedding_gradients_in_flight(work),
        },
        "optimizer_step": resident | {"gradients": weights},
        "evaluation": resident | _evaluation(work, casts),
        "checkpoint": resident | {"gradients": _bucket_bytes(work, weights)},
    }


def _saved(work: Workload) -> Terms:
    """What the whole forward pass keeps."""
    n_tokens, n_layer = work.n_tokens, work.model.n_layer
    outer = activations.outer_bytes(work) * n_tokens
    if work.recomputes_blocks:
        stream = work.numerics.residual * work.model.n_embd * n_tokens * n_layer
        return {"activations_residual": stream + outer}
    layers = _per_layer(work, n_layer)
    layers["activations_residual"] += outer
    return layers


def _saved_for_layers(work: Workload) -> Terms:
    """What is left of it when the last layer's backward begins; with recomputation that layer is whole again."""
    if not work.recomputes_blocks:
        return _per_layer(work, work.model.n_layer)
    layer = _per_layer(work, 1)
    others = work.model.n_layer - 1
    layer["activations_residual"] += work.numerics.residual * work.model.n_embd * work.n_tokens * others
    return layer


def _per_layer(work: Workload, n_layer: int) -> Terms:
    n_rows = n_layer * work.n_tokens
    fraction = activations.COMPILED_ACTIVATIONS_FRACTION if work.compiled else 1.0
    return {
        "activations_residual": round(n_rows * activations.residual_bytes(work) * fraction),
        "activations_attention": round(n_rows * activations.attention_bytes(work) * fraction),
        "activations_mlp": round(n_rows * activations.mlp_bytes(work) * fraction),
        "activations_norms": round(n_rows * activations.norm_bytes(work) * fraction),
    }


def _loss(work: Workload, bytes_per_logit: int) -> int:
    per_logit = min(bytes_per_logit, 3 * work.numerics.compute) if work.compiled else bytes_per_logit
    return per_logit * work.model.vocab_size * work.n_tokens


def _norm_output(work: Workload) -> int:
    """Until the forward pass returns, the final norm's fp32 output lives beside its cast."""
    if work.numerics.residual == work.numerics.compute:
        return 0
    return work.numerics.residual * work.model.n_embd * work.n_tokens


def _head_gradient(work: Workload) -> int:
    return work.numerics.weight * work.model.vocab_size * work.model.n_embd


def _layer_gradients_in_flight(work: Workload) -> int:
    """The head's gradient waits for the embedding's when they are one matrix; one weight's gradient is being made."""
    numerics, model = work.numerics, work.model
    one_weight = numerics.compute * model.d_ff * model.n_embd
    waits = model.tied_head and work.keeps_gradients
    return one_weight + (_head_gradient(work) if waits else 0)


def _embedding_gradients_in_flight(work: Workload) -> int:
    """The embedding's gradient is made dense (V x n_embd), and added to the head's if tied, then to what is kept."""
    copies = (1 if work.model.tied_head else 0) + (1 if work.keeps_gradients else 0)
    return copies * _head_gradient(work)


def _bucket_bytes(work: Workload, weights: int) -> int:
    """Between steps gradients are gone, but DDP's buckets are not."""
    return weights if work.has_buckets else 0


def _evaluation(work: Workload, casts: int) -> Terms:
    n_tokens, numerics = work.n_tokens, work.numerics
    block = activations.no_grad_working_bytes(work) * n_tokens
    head = _norm_output(work) + numerics.compute * work.model.n_embd * n_tokens
    loss = _loss(work, numerics.loss_forward_bytes_per_logit)
    working, logits = (block, 0) if block > head + loss else (head, loss)
    return {
        "gradients": _bucket_bytes(work, numerics.weight * count_params(work.model, work.sequence_length).total),
        "weight_casts": casts,
        "working_tensors": working,
        "logits_and_loss": logits,
    }
