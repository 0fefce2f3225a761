"""What does the model itself occupy on one rank? Weights, gradients, Adam's moments, 16-bit casts.

Mixed-precision training with Adam keeps 16 bytes a parameter (Rajbhandari et al. 2020, arXiv:1910.02054): here fp32
weights, gradients and two moments (Loshchilov & Hutter 2019). The fused optimizer needs no temporaries.
"""

from __future__ import annotations

from typing import NamedTuple

from preflight.memory.workload import Workload
from preflight.params import count_params, layer_matmul_params


class States(NamedTuple):
    """Bytes of one rank, independent of the micro-batch."""

    n_params: int
    weights: int
    optimizer: int
    gradients: int  # all of them, as after a backward pass
    bucket_copies: int  # DDP's own gradients, when they are not views
    optimizer_working: int  # temporaries of its step
    kept_gradients: int  # there before a backward pass begins
    head_gradient: int  # V x n_embd, the head's or the token embedding's
    position_gradient: int
    layer_gradient: int  # of one layer
    layer_casts: int  # autocast's copies of one layer's matrices
    head_cast: int
    widest_matrix: int  # the largest weight gradient of a layer while it is being made


def states_of(work: Workload) -> States:
    """Data parallel: every rank holds everything; DDP's buckets are the gradients (gradient_as_bucket_view)."""
    model, numerics = work.model, work.numerics
    counts = count_params(model, work.sequence_length)
    weights = numerics.weight * counts.total
    head = model.vocab_size * model.n_embd
    layer = sum(layer_matmul_params(model))
    cast = numerics.compute if numerics.casts_weights else 0
    return States(
        n_params=counts.total,
        weights=weights,
        optimizer=numerics.optimizer * counts.total,
        gradients=weights,
        bucket_copies=weights if work.copies_buckets else 0,
        optimizer_working=work.optimizer_working_bytes * counts.total,
        kept_gradients=weights if work.keeps_gradients else 0,
        head_gradient=numerics.weight * head,
        position_gradient=numerics.weight * counts.position_embedding,
        layer_gradient=numerics.weight * layer,
        layer_casts=cast * layer,
        head_cast=cast * head,
        widest_matrix=numerics.compute * model.d_ff * model.n_embd,
    )
