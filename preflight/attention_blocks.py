"""Into which blocks of queries is causal attention cut when it is written out? The trainer and the bill both ask.

A block of queries from `start` to `end` looks at the keys up to `end`: with n equal blocks (n + 1) / 2n of the T x T
products are computed and kept. Fewer than 64 rows fill a matmul badly, more than 256 waste what the mask removes.
"""

from __future__ import annotations

MIN_ROWS, MAX_ROWS, N_BLOCKS = 64, 256, 4


def query_blocks(n_positions: int) -> list[tuple[int, int]]:
    """Start and end of each."""
    n_rows = min(MAX_ROWS, max(MIN_ROWS, -(-n_positions // N_BLOCKS)))
    return [(start, min(start + n_rows, n_positions)) for start in range(0, n_positions, n_rows)]


def n_scores(n_positions: int) -> int:
    """Softmax results that one head keeps for the backward pass."""
    return sum((end - start) * end for start, end in query_blocks(n_positions))
