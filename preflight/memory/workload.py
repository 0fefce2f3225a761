"""What does one rank hold and compute with? The facts that the memory sums need, free of the plan's words.

`workload_of` says them for our trainer. Other people's code, whose measured peaks the sums are held against
(`scripts/bench_accuracy.py`), differs in the fields that have defaults here.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from conf.choices import Adapter, AdapterTargets, Attention, Optimizer, OptimizerKernel, Parallel
from preflight.hw_plan import CardKind
from preflight.memory.numerics import FP32_BYTES, Numerics, numerics_of
from preflight.params import adapter_params, adapter_widths
from preflight.plan import Checkpointing, ModelPlan, RunPlan, TrainerPlan

# bitsandbytes' NF4 (Dettmers et al. 2023, arXiv:2305.14314): half a byte a weight, an fp32 scale for every 64.
NF4_BYTES_PER_WEIGHT = 0.5 + FP32_BYTES / 64


class Shards(NamedTuple):
    """Among how many ranks states are shared out (Rajbhandari et al. 2020), and what is put together again."""

    optimizer: int = 1
    gradients: int = 1
    weights: int = 1
    gathered: int = 0  # bytes of an element while a unit is whole; 0: nothing has to be put together
    keeps_gathered: bool = False  # from the forward pass to the backward pass (ZeRO-2 as FSDP2 does it)
    n_units_ahead: int = 1  # units that are gathered before their turn
    whole_tensors: bool = False  # a tensor's states stand on one rank (ZeroRedundancyOptimizer)


NO_SHARDS = Shards()


class Adapters(NamedTuple):
    """Low-rank updates of frozen weights (Hu et al. 2021, arXiv:2106.09685)."""

    n_params: int  # trained, all layers
    n_ranks: int  # channels of the narrow middle, all adapters of a layer together
    frozen: float  # bytes of a frozen weight of a block
    frozen_rest: int  # of embeddings, norms and head
    needs_norm_output: bool  # who is adapted keeps its input: query, key, value
    needs_mlp_input: bool
    needs_mlp_hidden: bool
    has_dropout: bool = False  # of the adapters' inputs: a mask and a copy each
    n_adapted_inputs: int = 1  # linears with a dropout of their own
    n_trained_rest: int = 0  # embeddings and head that are trained as well

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
    stores_attention_matrix: bool  # attention without a fused kernel
    attention_blocks: bool = False  # written out as trainers/attention.py does: 16 bit, without most of what is masked
    n_eval_sequences: int | None = None  # None: as many as in training; 0: no evaluation
    copies_buckets: bool = False  # DDP without gradient_as_bucket_view: a second copy of the gradients
    optimizer: Optimizer = Optimizer.adamw
    kernel: OptimizerKernel = OptimizerKernel.fused
    shards: Shards = NO_SHARDS
    adapters: Adapters | None = None
    loss_chunk_tokens: int = 0  # logits of so many tokens at a time; 0: all at once
    loads_into_memory: bool = False  # a checkpoint is read into the same memory: on a CPU
    writes_norms_out: bool = False  # no fused kernel for RMSNorm: its fp32 result is kept beside the input
    # Not ours:
    keeps_logits: bool = False  # a variable of the loop holds them through the backward pass
    norm_extra_bytes: int = 0  # per channel and norm: norms written out in elementary operators
    n_extra_wide: int = 0  # tensors of width d_ff: non-linearities written out
    n_extra_narrow: int = 0  # tensors of width n_embd: cached keys and values
    expandable_segments: bool = True  # of PyTorch's caching allocator; trainers/backends/local.py turns them on
    repeats_kv: bool = False  # keys and values are copied to every head before attention
    optimizer_on_host: bool = False  # offloaded
    communication_bytes: int = 0  # fixed buffers of a framework's own collectives

    @property
    def n_tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.n_sequences * self.sequence_length


def workload_of(plan: RunPlan) -> Workload:
    """As `trainers/pretrain.py` will run it."""
    trainer, model, world_size = plan.trainer, plan.model, plan.hw.world_size
    on_cpu = plan.hw.card.kind is CardKind.cpu
    numerics = numerics_of(trainer.precision, on_cpu=on_cpu, is_compiled=trainer.compile)
    is_ddp = world_size > 1 and trainer.parallel in (Parallel.ddp, Parallel.zero1)
    return Workload(
        model=model,
        n_sequences=trainer.micro_batch_size,
        sequence_length=trainer.sequence_length,
        numerics=numerics,
        recompute=trainer.activation_checkpointing,
        keeps_gradients=trainer.grad_accum_steps > 1 or (is_ddp and trainer.bucket_views),
        has_buckets=is_ddp and trainer.bucket_views,
        mask_bytes=numerics.compute if on_cpu else 1,  # CPU: noise in the tensor's own type; CUDA: bool
        # the CPU's flash kernel has no dropout
        stores_attention_matrix=trainer.attention is Attention.eager or (on_cpu and model.dropout > 0),
        attention_blocks=trainer.attention is Attention.eager,
        n_eval_sequences=trainer.eval_micro_batch_size,
        copies_buckets=is_ddp and not trainer.bucket_views,
        optimizer=trainer.optimizer,
        kernel=trainer.optimizer_kernel,
        shards=shards_of(trainer.parallel, world_size, numerics),
        adapters=None if trainer.adapter is Adapter.none else _adapters(model, trainer, numerics),
        loss_chunk_tokens=trainer.loss_chunk_tokens,
        loads_into_memory=on_cpu,
        writes_norms_out=on_cpu,
    )


@cache
def shards_of(parallel: Parallel, world_size: int, numerics: Numerics) -> Shards:
    """ZeRO-1: ZeroRedundancyOptimizer beside DDP. ZeRO-2 and 3: FSDP2, whose units are whole in the matmuls' type."""
    if world_size == 1 or parallel is Parallel.ddp:
        return NO_SHARDS
    if parallel is Parallel.zero1:
        return Shards(optimizer=world_size, whole_tensors=True)
    return Shards(
        world_size, world_size, world_size, gathered=numerics.weight, keeps_gathered=parallel is Parallel.zero2
    )


def _adapters(model: ModelPlan, trainer: TrainerPlan, numerics: Numerics) -> Adapters:
    return adapters_of(model, trainer.lora_targets, trainer.lora_rank, trainer.adapter, numerics.compute)


@cache
def adapters_of(model: ModelPlan, targets: AdapterTargets, rank: int, adapter: Adapter, compute: int) -> Adapters:
    """Frozen weights are kept in the matmuls' type."""
    is_linear = targets is AdapterTargets.linear
    return Adapters(
        n_params=adapter_params(model, targets, rank),
        n_ranks=rank * len(adapter_widths(model, targets)),
        frozen=NF4_BYTES_PER_WEIGHT if adapter is Adapter.qlora else compute,
        frozen_rest=compute,
        needs_norm_output=True,
        needs_mlp_input=is_linear,
        needs_mlp_hidden=is_linear,
    )
