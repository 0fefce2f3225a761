"""How often is a run of so many steps evaluated and saved, when nobody said?

From the number of steps alone, so that a shorter run can be worked out exactly as it would be planned: ten evaluations
a run (a step's worth of held-out tokens costs a third of a training step) and five checkpoints, both at least every
1,000 steps.
"""

from __future__ import annotations

N_EVALUATIONS = 10
MIN_EVAL_INTERVAL = 4  # steps: an evaluation costs at least a third of one, so it stays below a tenth of the run
EVAL_SHARE = 0.1  # of the training tokens, all evaluations together: a thirtieth of the arithmetic
MAX_EVAL_TOKENS = 2**20
N_CHECKPOINTS = 5
MAX_INTERVAL = 1000  # steps between evaluations, and between checkpoints


def default_eval_interval(n_steps: int) -> int:
    """Steps."""
    return min(max(-(-n_steps // N_EVALUATIONS), MIN_EVAL_INTERVAL), MAX_INTERVAL)


def default_checkpoint_interval(n_steps: int) -> int:
    """Steps."""
    return min(-(-n_steps // N_CHECKPOINTS), MAX_INTERVAL)


def default_n_eval_sequences(n_steps: int, eval_interval: int, tokens_per_step: int, sequence_length: int) -> int:
    """Held-out sequences of one evaluation, all ranks together: whole steps' worth."""
    n_evaluations = max(1, n_steps // eval_interval if eval_interval else 1)
    allowed = min(EVAL_SHARE * n_steps * tokens_per_step / n_evaluations, MAX_EVAL_TOKENS)
    return max(1, int(allowed // tokens_per_step)) * (tokens_per_step // sequence_length)


def at_most_the_data(n_sequences: int, n_val_tokens: int | None, sequence_length: int, world_size: int) -> int:
    """Never more than is held out, never less than one a rank."""
    if n_val_tokens is None:
        return n_sequences
    return max(world_size, min(n_sequences, (n_val_tokens - 1) // sequence_length))
