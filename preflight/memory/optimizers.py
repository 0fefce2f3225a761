"""What does the optimizer keep for the parameters, and what does its step need while it works?

AdamW (Loshchilov & Hutter 2019): two moments. 8-bit AdamW (Dettmers et al. 2022, arXiv:2110.02861): a byte each, an
fp32 scale for every block of 256, small tensors in fp32. SGD: one momentum. Adafactor (Shazeer & Stern 2018): a row
and a column per matrix. Muon (Jordan 2024): one momentum for the blocks' matrices, AdamW for the rest. Working memory
is that of torch.optim's code: `foreach` makes lists of temporaries as large as what it updates, `loop` one tensor's.
"""

from __future__ import annotations

from typing import NamedTuple

from conf.choices import Optimizer, OptimizerKernel
from preflight.memory.numerics import FP32_BYTES, HALF_BYTES, Numerics

QUANTISED_BLOCK = 256
LOOP_TEMPORARIES = {  # tensors of the largest parameter's size
    Optimizer.adamw: 2,  # the root of the second moment, and the same divided by its bias
    Optimizer.sgd: 1,  # the gradient with weight decay
    Optimizer.adafactor: 1,
}
FOREACH_TEMPORARIES = {Optimizer.adamw: 1, Optimizer.sgd: 1, Optimizer.adafactor: 1}


class Trained(NamedTuple):
    """Parameters that the optimizer updates on this rank."""

    n_matrix: int  # in the blocks' weight matrices
    n_table: int  # in embeddings and head
    n_vector: int  # in norms and biases
    n_rows_and_columns: int  # of all matrices and tables
    largest: int  # elements of the largest tensor
    largest_matrix: int  # elements of the largest matrix in a block
    smaller_side: int  # of that matrix

    @property
    def total(self) -> int:
        """All of them."""
        return self.n_matrix + self.n_table + self.n_vector


def optimizer_bytes(optimizer: Optimizer, numerics: Numerics, trained: Trained) -> int:
    """Between steps."""
    moment = numerics.moment
    master = numerics.master * trained.total
    if optimizer is Optimizer.adamw_8bit:
        n_large = trained.n_matrix + trained.n_table
        return master + 2 * (n_large + n_large * FP32_BYTES // QUANTISED_BLOCK + FP32_BYTES * trained.n_vector)
    if optimizer is Optimizer.sgd:
        return master + moment * trained.total
    if optimizer is Optimizer.adafactor:
        return master + moment * (trained.n_rows_and_columns + trained.n_vector)
    n_moments = 2 * trained.total - (trained.n_matrix if optimizer is Optimizer.muon else 0)
    return master + moment * n_moments


def working_bytes(optimizer: Optimizer, kernel: OptimizerKernel, numerics: Numerics, trained: Trained) -> int:
    """Temporaries of a step."""
    element = numerics.weight if not numerics.master else FP32_BYTES
    copied = FP32_BYTES * trained.total if numerics.master else 0  # gradients, beside 16-bit ones
    if optimizer is Optimizer.muon:
        square = HALF_BYTES * trained.smaller_side**2
        return copied + (element + 2 * HALF_BYTES) * trained.largest_matrix + 2 * square
    if optimizer is Optimizer.adamw_8bit or kernel is OptimizerKernel.fused:
        return copied
    if kernel is OptimizerKernel.foreach:
        return copied + FOREACH_TEMPORARIES[optimizer] * element * (trained.n_matrix + trained.n_table)
    return copied + LOOP_TEMPORARIES[optimizer] * element * trained.largest
