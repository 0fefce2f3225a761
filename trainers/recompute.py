"""What does a block keep for its backward pass, and what is computed again? (Chen et al. 2016)

full        the block's input; everything else is computed twice.
selective   its input, the results of its linears and of fused attention: what is dear to compute. Norms, activations,
            rotations, dropout and the residual sums are computed again (Korthikanti et al. 2022, section 5).
            Attention written out (`trainer.attention=eager`) is computed again as well: its scores are what is large.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from preflight.plan import Checkpointing

KEPT_OPERATORS = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default,
]
CONTEXTS = partial(create_selective_checkpoint_contexts, KEPT_OPERATORS)


def run_block(block: nn.Module, checkpointing: Checkpointing, *inputs: Any) -> Tensor:
    """The block's output, and as much kept as was asked for."""
    run: Callable[..., Tensor] = block
    if checkpointing is Checkpointing.full:
        run = partial(checkpoint, block, use_reentrant=False)
    elif checkpointing is Checkpointing.selective:
        run = partial(checkpoint, block, use_reentrant=False, context_fn=CONTEXTS)
    return run(*inputs)
