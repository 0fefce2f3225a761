"""A loss or a gradient that is no number: skipped and counted where fp16's scaler does so, else the end of the run.

The scaler looks at the gradients, skips the update when one is not finite, and lowers its scale (Micikevicius et al.
2018): the weights stay sound, so a few in a row are ordinary. Without a scaler the update has been made when the loss
is read, and the weights are lost: the first one ends the run, and the checkpoint before it is sound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from preflight.errors import TrainingFailed
from preflight.plan import TrainerPlan


class SkippedSteps:
    """Updates that the scaler did not make; on every rank the same, since gradients are."""

    def __init__(self, trainer: TrainerPlan, scaler: torch.amp.GradScaler) -> None:
        self.trainer, self.scaler = trainer, scaler
        self.n_skipped = self.n_in_a_row = 0
        self._scale = scaler.get_scale()

    def count(self, step: int) -> None:
        """After an update of the scaler: a lower scale is its word that it found something that was not finite."""
        if not self.scaler.is_enabled():
            return
        before, self._scale = self._scale, self.scaler.get_scale()
        is_skipped = self._scale < before
        self.n_skipped += is_skipped
        self.n_in_a_row = self.n_in_a_row + 1 if is_skipped else 0
        if self.n_in_a_row >= self.trainer.max_nonfinite_steps:
            raise TrainingFailed(
                f"gradients were not finite in {self.n_in_a_row} steps in a row, the last one step {step}, "
                f"with a loss scale of {self._scale:g} now (trainer.max_nonfinite_steps="
                f"{self.trainer.max_nonfinite_steps}); weights and checkpoints are sound.\n"
                f"  To fix: trainer.learning_rate={self.trainer.learning_rate / 3:.2g}, or trainer.precision=fp32"
            )

    def check(self, recent: Sequence[float], step: int) -> None:
        """The losses up to this step. The scaler's own business is counted above."""
        if self.scaler.is_enabled():
            return
        for i, loss in enumerate(recent):
            if not math.isfinite(loss):
                raise TrainingFailed(
                    f"the loss of step {step - len(recent) + 1 + i} is {loss}; checkpoints are older and sound.\n"
                    f"  To fix: trainer.learning_rate={self.trainer.learning_rate / 3:.2g}, or trainer.precision=fp32"
                )
