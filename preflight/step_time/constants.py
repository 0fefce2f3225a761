"""Which constants turn FLOPs and bytes into seconds? One set per kind of card, each constant with its evidence.

Three of the CUDA set are fitted to public training runs (`FITTED`; scripts/accuracy_throughput.py refits them without
the source that it judges); the others are published measurements or arithmetic. None belongs to one card or trainer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from preflight.hw_plan import CardKind

FITTED = ("sustained_fraction", "sharding_fraction", "eager_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConstants:
    """What a step costs beyond its FLOPs."""

    sustained_fraction: float  # of the best matmul: clocks over minutes, tails, autograd's copies
    power_exponent: float  # how a board short of watts for its peak falls behind
    # A matmul of width d reaches d / (d + knee x R) of its rate; R: the card's FLOP per byte relative to an A100's.
    # Operand traffic that does not hide. RTX 3090 Ti: 0.4, 25.9, 71.5, 81.3 TFLOPS at n = 128, 512, 2048, 8192
    # (mli/transformers-benchmarks).
    knee_width: float
    bandwidth_fraction: float  # streaming kernels reach 80-92 % of the listed rate
    # Fused attention: matmuls at a fraction of the matmul rate, softmax in fp32 slots per score, diagonal blocks that
    # are computed whole on cards that short sequences fill badly. FlashAttention-2's figures (arXiv:2307.08691, A100,
    # causal, forward and backward): 107-163 TFLOPS from 1k to 16k tokens with heads of 64, 189 with heads of 128.
    attention_fraction: float
    softmax_flops_per_score: float
    attention_block_tokens: float
    unfused_attention_fraction: float  # batched matmuls
    eager_score_bytes: float  # traffic per score where attention is written out, forward and backward, no dropout
    # Dropout's random numbers. Inside fused attention, per score of one forward pass: dropout takes 11-16 % of forward
    # and backward at heads of 64 channels, -2 to 8 % at 96 and 128 (flash-attention's pull request 2439, GB10): half of
    # softmax's arithmetic. Inside compiled kernels: Philox's ten rounds of ten integer operations (Salmon et al. 2011;
    # triton.language.rand), each as long as two listed operations. Kernels of their own hide them behind their traffic.
    fused_random_flops: float
    compiled_random_flops: float
    random_seconds: float  # of a number on processors, where one thread of a rank draws them one after the other
    # Of the matmul rate when the vocabulary fills no whole rows of tensor cores: padding 50,257 to 50,304 gave 14 % of
    # a compiled step on an A100 (rasbt/LLMs-from-scratch ch05/10: 112,046 -> 127,345 tokens/s), 25 % in nanoGPT (its
    # author's note on the commit); the head is 15-35 % of those steps.
    unaligned_matmul_fraction: float
    # Bytes per activation element and layer, forward and backward: norms, GELU, residuals, casts, copies.
    eager_bytes: float
    compiled_bytes: float
    fp32_bytes_factor: float  # the residual stream is fp32 anyway
    # Bytes per logit: compiled, about six passes over 2 bytes; eager, a cast to fp32, softmax, its gradient in 4 bytes.
    eager_loss_bytes: float
    compiled_loss_bytes: float
    # Host: Python, autograd and launches of one pass (forward and backward). GPT-2-sized layers in eager PyTorch take
    # 2-2.5 ms of CPU time whatever their size (about 90 launches), compiled ones a tenth.
    pass_seconds: float
    eager_layer_seconds: float
    compiled_layer_seconds: float
    waking_layer_seconds: float  # on processors, where the threads of a rank are woken for each kernel and waited for
    sharding_fraction: float  # of the matmul rate left while gathers and reduce-scatters run beside it
    optimizer_bytes_per_param: float  # fused AdamW: reads weight, gradient, two moments; writes all but the gradient
    clip_bytes_per_param: float  # the norm reads, the scaling reads and writes
    cast_bytes_per_param: float  # autocast, each pass: weight to 16 bits, its gradient back and accumulated
    # p10 and p90 of measured / estimated, uncalibrated. CUDA: public runs, each source judged by constants fitted
    # without it (scripts/bench_accuracy_throughput.py). Others: a guess, since hardly any runs are public.
    low_factor: float
    high_factor: float


CUDA = StepConstants(
    sustained_fraction=0.87,
    power_exponent=0.2,
    knee_width=150.0,
    bandwidth_fraction=0.85,
    attention_fraction=0.95,
    softmax_flops_per_score=8.5,
    attention_block_tokens=400.0,
    unfused_attention_fraction=0.7,
    eager_score_bytes=42.0,
    fused_random_flops=4.5,
    compiled_random_flops=200.0,
    random_seconds=0.0,
    unaligned_matmul_fraction=0.5,
    eager_bytes=206.0,
    compiled_bytes=50.0,
    fp32_bytes_factor=1.2,
    eager_loss_bytes=36.0,
    compiled_loss_bytes=12.0,
    pass_seconds=10e-3,
    eager_layer_seconds=2e-3,
    compiled_layer_seconds=3e-4,
    waking_layer_seconds=0.0,
    sharding_fraction=0.91,
    optimizer_bytes_per_param=28.0,
    clip_bytes_per_param=12.0,
    cast_bytes_per_param=16.0,
    low_factor=0.82,
    high_factor=1.75,
)
# Two cores of a Zen 4 server, torch 2.13, 18 models of 0.4M to 11M parameters in bf16 and fp32, 2026-11-30: matmuls at
# 0.54 of 64 operations a cycle (0.9 on an Intel with two AVX-512 units), attention at 0.36 of that rate, elementwise
# work at 180 bytes an element and layer, AdamW and clipping at twice their traffic, and 6 ms of a layer that no size
# changes, not hidden but added: 2 ms for some hundred kernels (a layer of 16 tokens: 1.4 to 1.9 ms with one thread as
# with two), the rest for waking the other threads and waiting for them at each, which a rank of one thread does not.
# The 18 are met within 4 % (median) and 12 % (worst); torch.compile takes 0.98 of eager there.
# Dropout: a random number takes 7.5 ns of one thread, however many there are (PyTorch draws them in parallel on Intel's
# processors alone, where this is too much); ten steps of 30 to 155 ms more than without it are met within a quarter.
# PyTorch's own attention, which then computes whole squares: 1.1 to 1.6 of what four such steps took more.
CPU = StepConstants(
    sustained_fraction=0.85,
    power_exponent=0.0,
    knee_width=150.0,
    bandwidth_fraction=0.85,
    attention_fraction=0.36,
    softmax_flops_per_score=26.0,
    attention_block_tokens=0.0,
    unfused_attention_fraction=0.36,
    eager_score_bytes=27.0,
    fused_random_flops=0.0,
    compiled_random_flops=0.0,
    random_seconds=7.5e-9,
    unaligned_matmul_fraction=1.0,
    eager_bytes=180.0,
    compiled_bytes=175.0,
    fp32_bytes_factor=1.1,
    eager_loss_bytes=30.0,
    compiled_loss_bytes=29.0,
    pass_seconds=1e-3,
    eager_layer_seconds=2e-3,
    compiled_layer_seconds=2e-3,
    waking_layer_seconds=4e-3,
    sharding_fraction=1.0,
    optimizer_bytes_per_param=42.0,
    clip_bytes_per_param=18.0,
    cast_bytes_per_param=16.0,
    low_factor=0.5,
    high_factor=2.0,
)
# Apple's GPU: fp32 units do the matmuls; a launch costs more than CUDA's (nanoGPT issues: 70 ms for six narrow layers).
MPS = StepConstants(
    sustained_fraction=0.6,
    power_exponent=0.0,
    knee_width=150.0,
    bandwidth_fraction=0.8,
    attention_fraction=0.3,
    softmax_flops_per_score=26.0,
    attention_block_tokens=0.0,
    unfused_attention_fraction=0.5,
    eager_score_bytes=42.0,
    fused_random_flops=4.5,
    compiled_random_flops=200.0,
    random_seconds=0.0,
    unaligned_matmul_fraction=1.0,
    eager_bytes=220.0,
    compiled_bytes=100.0,
    fp32_bytes_factor=1.2,
    eager_loss_bytes=28.0,
    compiled_loss_bytes=16.0,
    pass_seconds=15e-3,
    eager_layer_seconds=5e-3,
    compiled_layer_seconds=3e-3,
    waking_layer_seconds=0.0,
    sharding_fraction=1.0,
    optimizer_bytes_per_param=60.0,  # not fused
    clip_bytes_per_param=12.0,
    cast_bytes_per_param=16.0,
    low_factor=0.4,
    high_factor=2.5,
)
ROCM = replace(CUDA, low_factor=0.6, high_factor=2.0)
CONSTANTS = {CardKind.cuda: CUDA, CardKind.rocm: ROCM, CardKind.mps: MPS, CardKind.cpu: CPU}
