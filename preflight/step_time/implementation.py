"""What does the training code do that no plan says? Ours by default; other people's when their runs are judged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """How a step is carried out."""

    fused_attention: bool = True  # scores never reach memory, masked blocks are skipped
    fused_attention_slowdown: float = 1.0  # against FlashAttention-2, which scaled_dot_product_attention uses
    score_bytes: float = 0.0  # traffic per score, forward and backward, where they do reach memory; dropout included
    fused_dropout: bool = False  # of the residual stream, in a kernel with what stands around it, compiled or not
    compiles_loss: bool = True  # it lies inside the compiled graph
    # Values read and written per element and layer, beyond what PyTorch's own kernels take, where norms or activations
    # are written in elementary operations and nothing fuses them
    elementary_accesses: float = 0.0
    sharded: bool = False  # weights, gradients and moments over all ranks, gathered each pass (FSDP)
    overlapped: bool = True  # gradients travel during the backward pass
    has_optimizer: bool = True
    recomputed_fraction: float | None = None  # of the forward pass; None: as the plan's checkpointing says


OUR_TRAINER = Implementation()
