"""What does one rank hold and compute with? The facts that the memory sums need, free of the plan's words.

`workload_of` says them for our trainer. Other people's code, whose measured peaks the sums are held against
(`scripts/bench_accuracy.py`), differs in the fields that have defaults here.
"""

from __future__ import annotations

from typing import NamedTuple

from preflight.hw_plan import CardKind
from preflight.plan import Checkpointing, ModelPlan, Precision, RunPlan

FP32_BYTES = 4
HALF_BYTES = 2  # bf16 and fp16
ADAM_BYTES = 2 * FP32_BYTES  # two moments


class Numerics(NamedTuple):
    """Bytes of one element, by what it is for, and bytes of everything the loss keeps for one logit.

    Loss: `F.cross_entropy` of logits that nobody else holds. fp32: logits and log-probabilities (4 + 4), then in
    backward log-probabilities and two gradients. CUDA autocast leaves log_softmax in 16 bit (an explicit dtype is
    given) but runs nll_loss in fp32 (ATen's LossNLL.cpp and autocast_mode.h): 2 + 2 + 4, then 2 + 4 + 4. CPU autocast
    runs the whole loss in fp32: 2 + 4 + 4, then 4 + 4 + 4. Inductor fuses the loss: the logits alone, whose place their
    gradient takes (donated buffers, torch >= 2.6; before that two).
    """

    weight: int  # parameters and their gradients, as autograd sees them
    optimizer: int  # everything the optimizer keeps for a parameter: moments, and fp32 weights beside 16-bit ones
    compute: int  # operands and results of matmuls
    residual: int  # the stream between the blocks, and what norms give out
    casts_weights: bool  # autocast keeps a 16-bit copy of every matrix it has met
    loss_forward_bytes_per_logit: int
    loss_backward_bytes_per_logit: int
    loss_hole_bytes_per_logit: int = 0  # left by 16-bit logits that died, too small for the fp32 tensors after them


FULL = Numerics(FP32_BYTES, ADAM_BYTES, FP32_BYTES, FP32_BYTES, False, 8, 12)
AUTOCAST = Numerics(FP32_BYTES, ADAM_BYTES, HALF_BYTES, FP32_BYTES, True, 8, 10, HALF_BYTES)
CPU_AUTOCAST = AUTOCAST._replace(loss_forward_bytes_per_logit=10, loss_backward_bytes_per_logit=12)
COMPILED_FULL = FULL._replace(loss_forward_bytes_per_logit=4, loss_backward_bytes_per_logit=4)
COMPILED_AUTOCAST = AUTOCAST._replace(
    loss_forward_bytes_per_logit=2, loss_backward_bytes_per_logit=2, loss_hole_bytes_per_logit=0
)


class Workload(NamedTuple):
    """One rank's share of one micro-step."""

    model: ModelPlan
    n_sequences: int
    sequence_length: int
    numerics: Numerics
    recomputes_blocks: bool  # activation checkpointing of every block
    keeps_gradients: bool  # they are there before the micro-step: accumulation, or DDP's buckets
    has_buckets: bool  # DDP: gradients are views of buckets that live from construction to the end
    mask_bytes: int  # of one element of a dropout mask
    stores_attention_matrix: bool  # attention without a fused kernel
    # Not ours:
    keeps_logits: bool = False  # a variable of the loop holds them through the backward pass
    copies_buckets: bool = False  # DDP without gradient_as_bucket_view: a second copy of the gradients
    optimizer_working_bytes: int = 0  # per parameter, while it updates: foreach and loops without fusion
    norm_extra_bytes: int = 0  # per channel and norm: norms written out in elementary operators
    n_extra_wide: int = 0  # tensors of width d_ff: non-linearities written out
    n_extra_narrow: int = 0  # tensors of width n_embd: cached keys and values
    expandable_segments: bool = True  # of PyTorch's caching allocator; trainers/backends/local.py turns them on
    repeats_kv: bool = False  # keys and values are copied to every head before attention

    @property
    def n_tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.n_sequences * self.sequence_length


def workload_of(plan: RunPlan) -> Workload:
    """As `trainers/pretrain.py` will run it."""
    trainer, model = plan.trainer, plan.model
    on_cpu = plan.hw.card.kind is CardKind.cpu
    numerics = _numerics(trainer.precision, on_cpu=on_cpu, compiled=trainer.compile)
    return Workload(
        model=model,
        n_sequences=trainer.micro_batch_size,
        sequence_length=trainer.sequence_length,
        numerics=numerics,
        recomputes_blocks=trainer.activation_checkpointing is Checkpointing.full,
        keeps_gradients=trainer.grad_accum_steps > 1 or plan.hw.world_size > 1,
        has_buckets=plan.hw.world_size > 1,
        mask_bytes=numerics.compute if on_cpu else 1,  # CPU: noise in the tensor's own type; CUDA: bool
        stores_attention_matrix=on_cpu and model.dropout > 0,  # the CPU's flash kernel has no dropout
    )


def _numerics(precision: Precision, *, on_cpu: bool, compiled: bool) -> Numerics:
    if precision not in (Precision.bf16, Precision.fp16):
        return COMPILED_FULL if compiled else FULL
    if compiled:
        return COMPILED_AUTOCAST
    return CPU_AUTOCAST if on_cpu else AUTOCAST
