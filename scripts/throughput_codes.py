"""What does a code base do that a row of throughputs does not say? Facts read from its source, never from times.

Every code base with five or more usable rows is here, those that drop nothing and time nothing but steps too; what is
not here is taken to be like them. A code base has several entries where its scripts differ; the first that fits a row
counts. As of 2026-11-30.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# Values read and written, forward and backward, by elementary operations in place of one kernel of PyTorch's.
# GELU by tanh: 18 and 28, in place of 2 and 3; on d_ff = 4 x width. LayerNorm: 10 and 32, in place of 2 and 5; twice.
WRITTEN_OUT_GELU_ACCESSES = 4 * (18 + 28 - 2 - 3)
WRITTEN_OUT_NORMS_ACCESSES = 2 * (10 + 32 - 2 - 5)
# A DataLoader of torch 2.13 with four workers, from iter() to its first batch and to the end of its workers: 35 ms of
# the trainer's own time (forking, one after the other) and 30 ms of a worker's, in a process of 230 MiB; a process with
# a CUDA context is larger, and forking it takes longer.
LOADER_START_SECONDS = 0.065


class Code(NamedTuple):
    """One script of a code base."""

    fits: Mapping[str, str] = {}  # words that columns of the row contain
    dropout: float = 0.0
    fuses_dropout: bool = False  # with bias and residual, in a scripted function
    compiles_loss: bool = True  # a part of what torch.compile is given
    is_pure_half: bool = False  # weights themselves in 16 bits
    elementary_accesses: float = 0.0
    # Evaluations between the two readings of the clock that a published speed comes from
    n_timed_steps: float = 1.0
    n_timed_forwards: float = 0.0
    n_timed_loader_starts: float = 0.0


# ch05/10_llm-training-speed: drop_rate 0.1; torch.compile(model), then cross_entropy outside of it; model.to(bfloat16);
# the clock starts again before evaluate_model, which takes a batch from each of two loaders with num_workers=4.
RASBT = Code(
    dropout=0.1, compiles_loss=False, is_pure_half=True, n_timed_steps=15, n_timed_forwards=2, n_timed_loader_starts=2
)
CODES = {
    "rasbt/LLMs-from-scratch": (
        # 02_opt_multi_gpu_ddp.py: eval_freq=5; 52 x 8 sequences (epochs of the published log) are three steps of
        # 4 x 32: the train loader starts anew every third
        RASBT._replace(fits={"parallel": "DDP"}, n_timed_steps=5, n_timed_loader_starts=2 + 5 / 3),
        # 01_opt_single_gpu.py: eval_freq=10
        RASBT._replace(fits={"micro_batch": "32"}, n_timed_steps=10),
        # 00_orig.py: eval_freq=15 (the published log), fp32; before its sixth step LayerNorm and GELU are its own
        RASBT._replace(
            fits={"attention": "from scratch", "precision": "fp32"},
            is_pure_half=False,
            elementary_accesses=WRITTEN_OUT_GELU_ACCESSES + WRITTEN_OUT_NORMS_ACCESSES,
        ),
        RASBT,
    ),
    # config/train_shakespeare_char.py: dropout = 0.2; train.py: 0.0. Evaluations precede the step they are timed with,
    # and what is printed is one step's time
    "karpathy/nanoGPT": (Code(fits={"model": "shakespeare"}, dropout=0.2),),
    # src/model/gpt_modeling.py: bias_dropout_add_fused_train(..., 0.1), torch.jit.script; iterations alone are timed
    "VIA-Research/vTrain": (Code(dropout=0.1, fuses_dropout=True),),
    # neusight/Tracing/trace.py: model.train() of transformers' GPT-2 (gelu_new in Python) and OPT (relu), configured
    # with 0.1; forward and backward alone are timed
    "sitar-lab/NeuSight": (
        Code(fits={"model": "GPT"}, dropout=0.1, elementary_accesses=WRITTEN_OUT_GELU_ACCESSES),
        Code(dropout=0.1),
    ),
    # scripts/train/yamls and configuration_mpt.py: attn_pdrop, resid_pdrop, emb_pdrop 0.0; submit_benchmarks.py:
    # eval_interval=0; nothing is compiled
    "mosaicml/llm-foundry": (Code(),),
    # examples/llm/yamls/mosaic_gpt: the three are 0.0 as well
    "mosaicml/examples": (Code(),),
    # 06-gpt-cuda and its successors: no dropout, the loss inside forward, one step's time printed
    "Any-Winter-4079/GPT-3-Small-Pretraining-Experiments": (Code(),),
    # train_gpt2.py: no dropout, the loss inside forward, the clock stops for validation
    "KellerJordan/modded-nanogpt": (Code(),),
    # models/llama: no dropout; the usable rows are not compiled; nothing is evaluated
    "pytorch/torchtitan": (Code(),),
    # transformers' run_clm.py, GPT2Config: attn_pdrop, resid_pdrop, embd_pdrop 0.1, gelu_new in Python
    "mli/transformers-benchmarks": (Code(dropout=0.1, elementary_accesses=WRITTEN_OUT_GELU_ACCESSES),),
}


def code_of(source: str, row: Mapping[str, str]) -> Code:
    """The first script of the code base that fits."""
    fitting = (
        code for code in CODES.get(source, ()) if all(words in row[column] for column, words in code.fits.items())
    )
    return next(fitting, Code())
