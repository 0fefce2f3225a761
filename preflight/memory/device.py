"""What does the device hold besides tensors? Allocator slack, CUDA context, NCCL buffers; on a CPU the process itself.

Each is (low, mid, high) in bytes. Context: 0.3-0.5 GiB with lazy module loading (CUDA >= 11.7), 0.9 without (pytorch
issue 107667; stas00/ml-engineering measures 0.47 and 0.92). NCCL: 544-688 MB a communicator on A100 (NCCL issue 964).
Slack: PyTorch's caching allocator (expandable segments, which the launcher sets) replayed over the traced tensors of
124M-1.5B plans: 0.3-6 % and the hole that dead 16-bit logits leave; 1.02-1.07 in public measurements of single cards.
"""

from __future__ import annotations

from preflight.hw_plan import Card, CardKind, HwPlan
from preflight.units import GIB, MIB

Edges = tuple[float, int, float]  # low, mid, high in bytes; mid is whole, so that terms sum exactly

# Two handles (forward thread, autograd thread) of `:4096:2:16:8`, from Hopper on 32 MiB (ATen's CublasHandlePool.cpp).
CUBLAS_WORKSPACE_BYTES = 2 * 8_519_680
CUBLAS_WORKSPACE_HOPPER_BYTES = 2 * 32 * MIB
HOPPER_COMPUTE_CAPABILITY = 9.0

CONTEXT_BYTES: Edges = (0.25 * GIB, 460 * MIB, 0.8 * GIB)
NCCL_BYTES: Edges = (0.2 * GIB, 512 * MIB, 1.0 * GIB)
NCCL_MANY_RANKS_BYTES: Edges = (0.3 * GIB, 820 * MIB, 1.8 * GIB)
MANY_RANKS = 8

SLACK_FIXED_BYTES: Edges = (2 * MIB, 20 * MIB, 60 * MIB)
SLACK_FRACTION = (0.0, 0.015, 0.06)  # beside the loss's hole
FIXED_SEGMENTS_SLACK_FRACTION = (0.0, 0.04, 0.20)  # PyTorch's default, replayed likewise
COMPILED_SLACK_FRACTION = (0.0, 0.03, 0.12)  # other shapes per graph; private pools in some modes

# CPU: resident set of python, torch and the trainer before the model is built (223 MiB); thread stacks, MKL's buffers
# and code paged in later (104 MiB). Measured with torch 2.13 on Linux, 2 cores.
PROCESS_BYTES: Edges = (260 * MIB, 327 * MIB, 420 * MIB)
WANDB_BYTES = 30 * MIB  # its library in the training process
# What the heap holds beyond living tensors, in units of one layer's activations and of all layers' gradients. glibc
# before 2.38 cannot reuse a freed block for an aligned request of the same size (its bug 14581), so each step leaves
# holes, more of them when gradients lie in between. Measured with glibc 2.36 on 58 plans of 0.8M-124M parameters,
# 18 of them with the huge pages that the launcher asks for; a newer glibc leaves next to nothing, hence the low edge.
HEAP_LAYERS: tuple[float, float, float] = (0.2, 2.0, 3.0)
HEAP_LAYERS_BETWEEN_GRADIENTS: tuple[float, float, float] = (0.2, 3.0, 4.0)
HEAP_GRADIENTS: tuple[float, float, float] = (0.0, 0.65, 1.5)
METAL_BYTES: Edges = (0.1 * GIB, 410 * MIB, 1.2 * GIB)


def cublas_workspace_bytes(card: Card) -> int:
    """Allocated through PyTorch's allocator at the first matmul."""
    if card.kind not in (CardKind.cuda, CardKind.rocm):
        return 0
    recent = card.compute_capability is not None and card.compute_capability >= HOPPER_COMPUTE_CAPABILITY
    return CUBLAS_WORKSPACE_HOPPER_BYTES if recent and card.kind is CardKind.cuda else CUBLAS_WORKSPACE_BYTES


def slack_bytes(tensor_bytes: int, hole_bytes: int, *, compiled: bool, expandable: bool) -> Edges:
    """What the device's allocator holds beyond the tensors of the peak. When memory is short it gives holes back."""
    low, mid, high = COMPILED_SLACK_FRACTION if compiled else SLACK_FRACTION
    if not expandable:
        low, mid, high = FIXED_SEGMENTS_SLACK_FRACTION
    low_fixed, mid_fixed, high_fixed = SLACK_FIXED_BYTES
    return (
        low * tensor_bytes + low_fixed,
        int(mid * tensor_bytes) + mid_fixed + hole_bytes,
        high * tensor_bytes + high_fixed + hole_bytes,
    )


def heap_slack_bytes(layer_bytes: int, gradients_bytes: int, *, keeps_gradients: bool) -> Edges:
    """What the C library's heap holds beyond the tensors of the peak."""
    n_layers = HEAP_LAYERS_BETWEEN_GRADIENTS if keeps_gradients else HEAP_LAYERS
    low, mid, high = (
        layers * layer_bytes + gradients * gradients_bytes
        for layers, gradients in zip(n_layers, HEAP_GRADIENTS, strict=True)
    )
    return low, int(mid), high


def base_bytes(kind: CardKind, *, has_wandb: bool = False) -> Edges:
    """What the process takes before there is a model: context, or libraries."""
    if kind is not CardKind.cpu:
        return METAL_BYTES if kind is CardKind.mps else CONTEXT_BYTES
    low, mid, high = PROCESS_BYTES
    return (low + WANDB_BYTES, mid + WANDB_BYTES, high + WANDB_BYTES) if has_wandb else PROCESS_BYTES


def communication_bytes(hw: HwPlan) -> Edges:
    """NCCL's channels and buffers; gloo keeps its own in host memory, a few MiB."""
    if hw.world_size == 1 or hw.card.kind in (CardKind.cpu, CardKind.mps):
        return (0.0, 0, 0.0)
    return NCCL_MANY_RANKS_BYTES if hw.world_size >= MANY_RANKS else NCCL_BYTES
