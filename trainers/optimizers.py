"""By which rule do gradients change weights, and what is kept for each parameter?

adamw       Loshchilov & Hutter 2019: two moments in the weights' type.
adamw_8bit  the same in a byte each, block-wise (Dettmers et al. 2022, bitsandbytes; of small tensors in fp32).
sgd         one momentum buffer; weight decay is added to the gradient.
adafactor   Shazeer & Stern 2018: a row and a column of second moments; no first moment.
muon        Jordan et al. 2024 (torch.optim.Muon) for the matrices of the blocks: one momentum buffer, and an update
            that is made orthogonal; AdamW for embeddings, head, norms and biases.

Matrices and embeddings decay, biases and norms do not (as nanoGPT). Every group follows the schedule of
`trainer.learning_rate`; `rate_ratio` is how much larger its own rate is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from conf.choices import Optimizer as Rule
from conf.choices import OptimizerKernel
from preflight.plan import TrainerPlan

Group = dict[str, Any]
Parameters = list[tuple[str, nn.Parameter]]
KERNELS: dict[OptimizerKernel, dict[str, bool]] = {
    OptimizerKernel.fused: {"fused": True},
    OptimizerKernel.foreach: {"foreach": True},
    OptimizerKernel.loop: {"foreach": False},
}


class Combined(Optimizer):
    """Several optimizers as one: the loop, the loss scaler and the checkpoint need not know."""

    def __init__(self, *parts: Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})  # the same dicts, not copies

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Each its own parameters."""
        for part in self.parts:
            part.step(closure)

    def state_dict(self) -> dict[str, Any]:
        """One for each part, in order."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse; the parts make new groups of it."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.relink()

    def relink(self) -> None:
        """After a part was loaded: its groups are new ones."""
        self.param_groups = [group for part in self.parts for group in part.param_groups]


Make = Callable[[list[Group], "type[Optimizer]", dict[str, Any]], Optimizer]


def make_here(groups: list[Group], rule: type[Optimizer], settings: dict[str, Any]) -> Optimizer:
    """All states on every rank; `trainers.sharding` has the maker that shares them out."""
    return rule(groups, **settings)


def make_optimizer(model: nn.Module, trainer: TrainerPlan, make: Make = make_here) -> Optimizer:
    """Of the parameters that are trained: frozen ones have no state."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if trainer.optimizer is Rule.muon:
        in_blocks = [(name, p) for name, p in named if p.dim() == 2 and ".h." in name]
        chosen = {name for name, _ in in_blocks}
        rest = [(name, p) for name, p in named if name not in chosen]
        return Combined(_muon(in_blocks, trainer, make), _adamw(rest, trainer, make))
    makers = {Rule.adamw: _adamw, Rule.adamw_8bit: _adamw_8bit, Rule.sgd: _sgd, Rule.adafactor: _adafactor}
    return makers[trainer.optimizer](named, trainer, make)


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Of every group, its own multiple."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("rate_ratio", 1.0)


def _groups(named: Iterable[tuple[str, nn.Parameter]], weight_decay: float) -> list[Group]:
    named = list(named)
    groups = [
        {"params": [p for _, p in named if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for _, p in named if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _adamw(named: Parameters, trainer: TrainerPlan, make: Make) -> Optimizer:
    settings = {"lr": trainer.learning_rate, "betas": (trainer.beta1, trainer.beta2)}
    groups = _groups(named, trainer.weight_decay)
    return make(groups, torch.optim.AdamW, settings | KERNELS[trainer.optimizer_kernel])


def _adamw_8bit(named: Parameters, trainer: TrainerPlan, make: Make) -> Optimizer:
    import bitsandbytes

    settings = {"lr": trainer.learning_rate, "betas": (trainer.beta1, trainer.beta2)}
    return make(_groups(named, trainer.weight_decay), bitsandbytes.optim.AdamW8bit, settings)


def _sgd(named: Parameters, trainer: TrainerPlan, make: Make) -> Optimizer:
    settings = {"lr": trainer.learning_rate, "momentum": trainer.beta1}
    groups = _groups(named, trainer.weight_decay)
    return make(groups, torch.optim.SGD, settings | KERNELS[trainer.optimizer_kernel])


def _adafactor(named: Parameters, trainer: TrainerPlan, make: Make) -> Optimizer:
    groups = _groups(named, trainer.weight_decay)
    return make(groups, torch.optim.Adafactor, {"lr": trainer.learning_rate} | KERNELS[trainer.optimizer_kernel])


def _muon(named: Parameters, trainer: TrainerPlan, make: Make) -> Optimizer:
    ratio = trainer.muon_learning_rate / trainer.learning_rate if trainer.learning_rate else 1.0
    groups = [{"params": [p for _, p in named], "weight_decay": trainer.weight_decay, "rate_ratio": ratio}]
    return make(groups, torch.optim.Muon, {"lr": trainer.muon_learning_rate})
