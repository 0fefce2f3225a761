"""What does the model itself occupy on one rank? Weights, gradients, the optimizer's states, 16-bit casts, shards.

Mixed-precision training with Adam keeps 16 bytes a parameter (Rajbhandari et al. 2020, arXiv:1910.02054): here fp32
weights, gradients and two moments. Shared out (ZeRO, FSDP2), a rank keeps its part, and whole units, a layer each or
what stands outside the layers, only while they are at work. Frozen weights have neither gradients nor states.
"""

from __future__ import annotations

from typing import NamedTuple

from preflight.memory.optimizers import Trained, optimizer_bytes, working_bytes
from preflight.memory.workload import Shards, Workload
from preflight.params import ParamCounts, count_params, kv_dim, layer_matmul_params, n_mlp_matrices, q_dim


class States(NamedTuple):
    """Bytes of one rank, independent of the micro-batch."""

    n_params: int
    weights: int  # trained ones
    frozen_weights: int
    whole_weights: int  # of all ranks
    optimizer: int
    checkpoint: int  # weights and the optimizer's states of all ranks
    gradients: int  # all of them, as after a backward pass
    bucket_copies: int  # DDP's own gradients, when they are not views
    optimizer_working: int  # temporaries of its step
    kept_gradients: int  # there before a backward pass begins
    head_gradient: int  # V x n_embd, the head's or the token embedding's; 0: frozen
    position_gradient: int
    layer_gradient: int  # of one layer
    layer_casts: int  # autocast's copies of one layer's matrices
    head_cast: int
    widest_matrix: int  # the largest weight gradient of a layer while it is being made
    gathered: int  # units of weights that are whole while they are at work
    unit_gradients: int  # whole gradients of units, on their way into a rank's part
    dequantised: int  # the largest frozen matrix, for the length of a matmul


def states_of(work: Workload) -> States:
    """Data parallel: every rank holds everything, unless `shards` says otherwise."""
    model, numerics, shards, adapters = work.model, work.numerics, work.shards, work.adapters
    counts = count_params(model, work.sequence_length)
    trained = _trained(work, counts)
    attention, mlp = layer_matmul_params(model)
    weight, cast = numerics.weight, numerics.compute if numerics.casts_weights else 0
    widest, table, n_position = model.d_ff * model.n_embd, counts.token_embedding, counts.position_embedding
    per_layer = attention + mlp
    if adapters is not None:
        per_layer = adapters.n_params // model.n_layer
        widest, n_position, table = adapters.rank * model.d_ff, 0, table if adapters.n_trained_rest else 0
    gradients = -(-weight * trained.total // shards.gradients)
    local = _local(trained, shards)
    gathered, unit_gradients = _units(work, counts, trained) if shards.gathered else (0, 0)
    return States(
        n_params=counts.total,
        weights=-(-weight * trained.total // shards.weights),
        frozen_weights=-(-_frozen_bytes(work, counts) // shards.weights),
        whole_weights=weight * trained.total + _frozen_bytes(work, counts),
        optimizer=0 if work.optimizer_on_host else optimizer_bytes(work.optimizer, numerics, local),
        checkpoint=weight * trained.total + optimizer_bytes(work.optimizer, numerics, trained),
        gradients=gradients,
        bucket_copies=weight * trained.total if work.copies_buckets else 0,
        optimizer_working=0 if work.optimizer_on_host else working_bytes(work.optimizer, work.kernel, numerics, local),
        kept_gradients=gradients if work.keeps_gradients else 0,
        head_gradient=weight * table,
        position_gradient=weight * n_position,
        layer_gradient=weight * per_layer,
        layer_casts=cast * per_layer if adapters is None else numerics.compute * adapters.n_copied,
        head_cast=cast * table,
        widest_matrix=numerics.compute * widest,
        gathered=gathered,
        unit_gradients=unit_gradients,
        dequantised=numerics.compute * model.d_ff * model.n_embd if adapters and adapters.is_quantised else 0,
    )


def _frozen_bytes(work: Workload, counts: ParamCounts) -> int:
    """Matrices of the blocks, embeddings and head, vectors: each in its own type."""
    adapters = work.adapters
    if adapters is None:
        return 0
    n_matrix = work.model.n_layer * sum(layer_matmul_params(work.model))
    n_table = counts.token_embedding + counts.position_embedding + counts.head
    tables = adapters.frozen_tables * max(0, n_table - adapters.n_trained_rest)
    return int(adapters.frozen * n_matrix) + tables + adapters.frozen_vectors * (counts.total - n_matrix - n_table)


def _trained(work: Workload, counts: ParamCounts) -> Trained:
    """By shape, since optimizers treat matrices, tables and vectors differently."""
    model, adapters = work.model, work.adapters
    if adapters is not None:
        n_rest = adapters.n_trained_rest
        largest = adapters.rank * max(model.d_ff, q_dim(model) + 2 * kv_dim(model))
        n_long = adapters.n_params // adapters.rank
        return Trained(adapters.n_params, n_rest, 0, n_long, max(n_rest // 2, largest), largest, adapters.rank)
    attention, mlp = layer_matmul_params(model)
    n_matrix = model.n_layer * (attention + mlp)
    own_tables = counts.token_embedding + counts.position_embedding + counts.head
    n_table = own_tables + work.n_other_params
    sides = n_mlp_matrices(model) * (model.n_embd + model.d_ff)
    sides += 2 * (model.n_embd + q_dim(model) + kv_dim(model))
    largest_matrix = model.n_embd * max(model.d_ff, q_dim(model) + 2 * kv_dim(model))
    n_tables = 1 if model.tied_head else 2
    return Trained(
        n_matrix,
        n_table,
        counts.total - n_matrix - own_tables,
        model.n_layer * sides
        + n_tables * (model.vocab_size + model.n_embd)
        + counts.position_embedding // model.n_embd,
        max(counts.token_embedding, largest_matrix),
        largest_matrix,
        model.n_embd,
    )


def _local(trained: Trained, shards: Shards) -> Trained:
    """What the fullest rank updates. Whole tensors: the largest stands on one rank, whatever the others have."""
    n = shards.optimizer
    if n == 1:
        return trained
    n_table = -(-trained.n_table // n)
    if shards.whole_tensors and trained.total < n * trained.largest:
        n_table += trained.largest - -(-trained.total // n)
    return trained._replace(
        n_matrix=-(-trained.n_matrix // n),
        n_table=n_table,
        n_vector=-(-trained.n_vector // n),
        n_rows_and_columns=-(-trained.n_rows_and_columns // n),
        largest=trained.largest if shards.whole_tensors else -(-trained.largest // n),
        largest_matrix=trained.largest_matrix,  # orthogonalised as a whole
    )


def _units(work: Workload, counts: ParamCounts, trained: Trained) -> tuple[int, int]:
    """FSDP2: what is whole at once, and whole gradients in flight.

    The root (embeddings, head, final norm) is whole throughout; of the layers the one at work and the next, which
    arrives in a flat buffer before it is cut up. A gradient is copied into the reduce-scatter's input in fp32, which
    lives until the next unit's is ready; the root's are complete, and sent off, at the end.
    """
    model, shards, adapters = work.model, work.shards, work.adapters
    layer = (counts.attention + counts.mlp) // model.n_layer
    root = counts.total - model.n_layer * layer
    layer_bytes, root_bytes = shards.gathered * layer, shards.gathered * root
    if adapters is not None:
        layer_bytes = int(adapters.frozen * layer) + shards.gathered * adapters.n_params // model.n_layer
        layer, root = adapters.n_params // model.n_layer, adapters.n_trained_rest
    n_whole = model.n_layer if shards.keeps_gathered else min(1 + shards.n_units_ahead, model.n_layer)
    largest = max(layer, root)
    return root_bytes + n_whole * layer_bytes, shards.gathered * root + (shards.gathered + shards.reduced) * largest
