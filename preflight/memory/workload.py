"""What does one rank hold and compute with? The facts that the memory sums need, free of the plan's words.

`workload_of` says them for our trainer. Other people's code, whose measured peaks the sums are held against
(`scripts/bench_accuracy.py`), differs in the fields that have defaults here.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from conf.choices import Activation, Adapter, AdapterTargets, Attention, Optimizer, OptimizerKernel, Parallel
from preflight.hw_plan import CardKind
from preflight.memory.numerics import FP32_BYTES, Numerics, compiled, numerics_of, with_half_stream
from preflight.params import kv_dim, q_dim
from preflight.plan import Checkpointing, ModelPlan, RunPlan, TrainerPlan
from preflight.products import rounds_products

# bitsandbytes' NF4 (Dettmers et al. 2023, arXiv:2305.14314): half a byte a weight and a scale for every 64, which
# double quantisation stores in a byte, with an fp32 scale for every 256 of those.
NF4_BYTES_PER_WEIGHT = 0.5 + 1 / 64 + FP32_BYTES / (64 * 256)


class Shards(NamedTuple):
    """Among how many ranks states are shared out (Rajbhandari et al. 2020), and what is put together again."""

    optimizer: int = 1
    gradients: int = 1
    weights: int = 1
    gathered: int = 0  # bytes of an element while a unit is whole; 0: nothing has to be put together
    reduced: int = FP32_BYTES  # bytes of an element of a gradient on its way
    keeps_gathered: bool = False  # from the forward pass to the backward pass (ZeRO-2 as FSDP2 does it)
    n_units_ahead: int = 1  # units that are gathered before their turn
    whole_tensors: bool = False  # a tensor's states stand on one rank (ZeroRedundancyOptimizer)


NO_SHARDS = Shards()


class Scores(Enum):
    """What attention keeps of its T x T products."""

    none = "none"  # a fused kernel: a log-sum-exp a row
    matrix = "matrix"  # all
    blocks = "blocks"  # what the mask leaves, by blocks of queries (`trainers.attention`)


class Adapters(NamedTuple):
    """Low-rank updates of frozen weights (Hu et al. 2021, arXiv:2106.09685)."""

    n_params: int  # trained, all layers
    n_narrow: int  # channels of the narrow middles of a layer
    rank: int
    frozen: float  # bytes of a frozen weight of a block
    frozen_tables: int  # of embeddings and head
    frozen_vectors: int  # of norms and biases
    n_norm_readers: int  # adapters that read the first norm's output
    n_mlp_readers: int  # and the second's
    reads_attention: bool  # what attention gives: a frozen projection keeps no input
    reads_mlp_hidden: bool
    has_dropout: bool = False  # of every adapter's input: a mask and a copy
    n_copied: int = 0  # elements of a layer's adapters as they are put together for one matmul
    n_trained_rest: int = 0  # embeddings and head that are trained as well
    n_attention_products: int = 0  # channels of all that adapters' matmuls give, beside the frozen ones'
    n_mlp_products: int = 0

    @property
    def is_quantised(self) -> bool:
        """Weights are dequantised for each matmul."""
        return self.frozen < 1.0


class Workload(NamedTuple):
    """One rank's share of one micro-step."""

    model: ModelPlan
    n_sequences: int
    sequence_length: int
    numerics: Numerics
    recompute: Checkpointing
    keeps_gradients: bool  # they are there before the micro-step: accumulation, or DDP's buckets
    has_buckets: bool  # DDP: gradients are views of buckets that live from construction to the end
    mask_bytes: int  # of one element of a dropout mask
    attention: Scores
    attention_blocks: bool = False  # written out as trainers/attention.py does: 16 bit, without most of what is masked
    n_eval_sequences: int | None = None  # None: as many as in training; 0: no evaluation
    copies_buckets: bool = False  # DDP without gradient_as_bucket_view: a second copy of the gradients
    optimizer: Optimizer = Optimizer.adamw
    kernel: OptimizerKernel = OptimizerKernel.fused
    shards: Shards = NO_SHARDS
    adapters: Adapters | None = None
    loss_chunk_tokens: int = 0  # logits of so many tokens at a time; 0: all at once
    checkpoints_in_memory: bool = False  # they are read and put together in the same memory: on a CPU
    copies_checkpoint: bool = False  # and a thread writes a copy while training goes on
    writes_norms_out: bool = False  # no fused kernel for RMSNorm: its fp32 result is kept beside the input
    # Not ours:
    keeps_logits: bool = False  # a variable of the loop holds them through the backward pass
    norm_extra_bytes: int = 0  # per channel and norm: norms written out in elementary operators
    n_extra_wide: int = 0  # tensors of width d_ff: non-linearities written out
    n_extra_narrow: int = 0  # tensors of width n_embd: cached keys and values
    expandable_segments: bool = True  # of PyTorch's caching allocator; trainers/backends/local.py turns them on
    repeats_kv: bool = False  # keys and values are copied to every head before attention
    optimizer_on_host: bool = False  # offloaded
    n_other_params: int = 0  # trained tables that our models lack
    loads_whole_weights: bool = False  # before they are shared out
    communication_bytes: int = 0  # fixed buffers of a framework's own collectives

    @property
    def n_tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.n_sequences * self.sequence_length


def workload_of(plan: RunPlan) -> Workload:
    """As `trainers/pretrain.py` will run it."""
    trainer, model, world_size = plan.trainer, plan.model, plan.hw.world_size
    on_cpu = plan.hw.card.kind is CardKind.cpu
    is_sliced = world_size > 1 and trainer.parallel in (Parallel.zero2, Parallel.zero3)
    is_ddp = world_size > 1 and not is_sliced
    numerics = _numerics(trainer, is_sliced=is_sliced, on_cpu=on_cpu, rounds=rounds_products(plan))
    return Workload(
        model=model,
        n_sequences=trainer.micro_batch_size,
        sequence_length=trainer.sequence_length,
        numerics=numerics,
        recompute=trainer.activation_checkpointing,
        keeps_gradients=trainer.grad_accum_steps > 1 or (is_ddp and trainer.bucket_views),
        has_buckets=is_ddp and trainer.bucket_views,
        mask_bytes=numerics.compute if on_cpu else 1,  # CPU: noise in the tensor's own type; CUDA: bool
        attention=_attention(trainer, on_cpu=on_cpu, has_dropout=model.dropout > 0),
        n_eval_sequences=trainer.eval_micro_batch_size,
        copies_buckets=is_ddp and not trainer.bucket_views,
        optimizer=trainer.optimizer,
        kernel=trainer.optimizer_kernel,
        shards=_shards(trainer.parallel, world_size, numerics.compute),
        adapters=None if trainer.adapter is Adapter.none else _adapters(model, trainer, numerics),
        loss_chunk_tokens=trainer.loss_chunk_tokens,
        checkpoints_in_memory=on_cpu,
        copies_checkpoint=on_cpu and trainer.save_beside,
        writes_norms_out=on_cpu,
    )


def _numerics(trainer: TrainerPlan, *, is_sliced: bool, on_cpu: bool, rounds: bool) -> Numerics:
    """FSDP2 gathers in the matmuls' type, and the stream follows; its blocks are compiled without the loss."""
    numerics = numerics_of(trainer.precision, on_cpu=on_cpu, rounds=rounds)
    if is_sliced:
        return with_half_stream(numerics, on_cpu=on_cpu) if numerics.casts_weights else numerics
    return compiled(numerics) if trainer.compile else numerics


def _attention(trainer: TrainerPlan, *, on_cpu: bool, has_dropout: bool) -> Scores:
    if trainer.attention is Attention.eager:
        return Scores.blocks
    return Scores.matrix if on_cpu and has_dropout else Scores.none  # the CPU's flash kernel has no dropout


def _shards(parallel: Parallel, world_size: int, compute: int) -> Shards:
    """ZeRO-1: ZeroRedundancyOptimizer beside DDP. ZeRO-2 and 3: FSDP2, whose units are whole in the matmuls' type."""
    if world_size == 1 or parallel is Parallel.ddp:
        return NO_SHARDS
    if parallel is Parallel.zero1:
        return Shards(optimizer=world_size, whole_tensors=True)
    return Shards(world_size, world_size, world_size, gathered=compute, keeps_gathered=parallel is Parallel.zero2)


def _adapters(model: ModelPlan, trainer: TrainerPlan, numerics: Numerics) -> Adapters:
    """As `trainers.lora` makes them: queries, keys and values lie in one matrix and have an adapter each."""
    width, attention, rank = model.n_embd, q_dim(model), trainer.lora_rank
    projected = attention + 2 * kv_dim(model)
    is_query_value = trainer.lora_targets is AdapterTargets.query_value
    n_parts, adapted = (2, attention + kv_dim(model)) if is_query_value else (3, projected)
    n_params, n_narrow, n_copied = n_parts * width + adapted, n_parts, n_parts * (width + projected)
    others = [] if is_query_value else [(attention, width)]
    is_linear = trainer.lora_targets is AdapterTargets.linear
    n_up = (2 if model.activation is Activation.swiglu else 1) if is_linear else 0
    others += n_up * [(width, model.d_ff)] + is_linear * [(model.d_ff, width)]
    n_others = sum(map(sum, others))
    return Adapters(
        n_params=model.n_layer * rank * (n_params + n_others),
        n_narrow=rank * (n_narrow + len(others)),
        n_attention_products=rank * n_narrow + projected + (0 if is_query_value else rank + width),
        n_mlp_products=n_up * (rank + model.d_ff) + is_linear * (rank + width),
        rank=rank,
        frozen=NF4_BYTES_PER_WEIGHT if trainer.adapter is Adapter.qlora else numerics.compute,
        frozen_tables=numerics.compute,
        frozen_vectors=numerics.weight,
        n_norm_readers=1,
        n_mlp_readers=n_up,
        reads_attention=not is_query_value,
        reads_mlp_hidden=is_linear,
        n_copied=rank * (n_copied + n_others),
    )
