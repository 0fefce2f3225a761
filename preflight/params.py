"""Parameter counts by group; the groups sum to the total and equal the trainer's module."""

from __future__ import annotations

from dataclasses import dataclass

from preflight.plan import ModelPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamCounts:
    """Parameters by group."""

    token_embedding: int
    position_embedding: int
    attention: int
    mlp: int
    norms: int
    head: int  # 0 when tied

    @property
    def total(self) -> int:
        """All parameters, each counted once."""
        return self.token_embedding + self.position_embedding + self.attention + self.mlp + self.norms + self.head


def count_params(model: ModelPlan, sequence_length: int) -> ParamCounts:
    """GPT-2: learned positions of length `sequence_length`. Llama: rotary, none."""
    raise NotImplementedError
