"""Which random weights does training start from? GPT-2's, drawn on the host in one order however the model is made.

N(0, 0.02) for matrices and tables (Radford et al. 2018, section 4.1); what writes into the residual stream is divided
by sqrt(2 n_layer), as GPT-2 has it. A model too large for one process is made without storage (on the device `meta`)
and gets it a part at a time (`trainers.sharding`): the same numbers, since the parts come in the order of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from trainers.rounding import linear

INIT_STD = 0.02


class Linear(nn.Linear):
    """Draws nothing when it is made: `draw` does, in an order of its own."""

    rounds = False  # `trainers.rounding`

    def reset_parameters(self) -> None:
        """Left as they are."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return linear(x, self.weight, self.bias, rounds=self.rounds)


class Embedding(nn.Embedding):
    """Likewise."""

    def reset_parameters(self) -> None:
        """Left as they are."""


def draw(named: Iterable[tuple[str, nn.Parameter]], n_layer: int) -> None:
    """Weights without storage are left out."""
    for name, parameter in named:
        if parameter.is_meta:
            continue
        if name.endswith(".bias"):
            nn.init.zeros_(parameter)
        elif parameter.dim() < 2:  # of a norm
            nn.init.ones_(parameter)
        else:
            scale = 1 / math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 1.0
            nn.init.normal_(parameter, mean=0.0, std=INIT_STD * scale)


def materialise(part: nn.Module, n_layer: int, dtype: torch.dtype) -> None:
    """Storage on the host for what has none, and its numbers: drawn in fp32, kept in `dtype`."""
    for place, module in part.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                made = nn.Parameter(torch.empty(parameter.shape, dtype=torch.float32))
                draw([(f"{place}.{name}", made)], n_layer)
                module._parameters[name] = made
    part.to(dtype)
