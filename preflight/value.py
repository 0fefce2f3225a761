"""Is the run worth it: tokens per parameter and the loss that a published scaling law expects."""

from __future__ import annotations

from dataclasses import dataclass

from preflight.band import Band
from preflight.plan import RunPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueEstimate:
    """`expected_loss` is None where the law was not fitted (byte-level models, other data)."""

    tokens_per_param: float
    n_epochs: float | None  # over the training tokens; None when their number is unknown
    expected_loss: Band | None
    expected_loss_at_three_quarters: float | None  # what the last quarter of the money buys
    compute_optimal_tokens: int  # about 20 a parameter


def estimate_value(plan: RunPlan) -> ValueEstimate:
    """Hoffmann et al. 2022, within its range."""
    raise NotImplementedError
