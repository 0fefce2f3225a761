"""Low-rank adapters: which linears get one, what is frozen, and how do they melt into the weights again?

LoRA (Hu et al. 2021): y = W x + (alpha / rank) B A x with W frozen, B zero at first. Queries, keys and values lie in
one matrix and have an adapter each. QLoRA (Dettmers et al. 2023): W of the blocks in 4 bits (NF4, double quantisation,
bitsandbytes). Frozen matrices are kept in the type they are multiplied in: what is not trained needs no master copy.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from conf.choices import Adapter, AdapterTargets
from preflight.plan import TrainerPlan
from trainers.layers import MLP, CausalSelfAttention
from trainers.precision import AUTOCAST_DTYPES
from trainers.rounding import linear

ATTENTION = ("query", "key", "value", "output")
TARGETS = {
    AdapterTargets.query_value: {"query", "value"},
    AdapterTargets.attention: {*ATTENTION},
    AdapterTargets.linear: {*ATTENTION, "up", "gate", "down"},
}


class AdaptedLinear(nn.Linear):
    """A frozen linear and its adapters; `parts` are the slices of its output, in order, that have a name."""

    rounds = False  # `trainers.rounding`

    def __init__(self, linear: nn.Linear, parts: dict[str, int], adapted: set[str], trainer: TrainerPlan) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.scale = trainer.lora_alpha / trainer.lora_rank
        self.widths = parts
        self.quantized: tuple[Tensor, Any] | None = None
        self.lora_A, self.lora_B = nn.ParameterDict(), nn.ParameterDict()
        for name, width in parts.items():
            if name in adapted:
                self.lora_A[name] = nn.Parameter(torch.empty(trainer.lora_rank, linear.in_features))
                self.lora_B[name] = nn.Parameter(torch.zeros(width, trainer.lora_rank))
                nn.init.kaiming_uniform_(self.lora_A[name], a=math.sqrt(5))  # as torch draws a linear's weights

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out). Kept for backward: x, and what A makes of it."""
        y = self._frozen(x)
        if not self.lora_A:  # quantised alone
            return y
        down = torch.cat([*self.lora_A.values()])
        blocks = [self.lora_B[name] if name in self.lora_B else down.new_zeros(n, 0) for name, n in self.widths.items()]
        narrow = linear(x, down, None, rounds=self.rounds)  # (..., the ranks of all parts, side by side)
        return y + self.scale * linear(narrow, torch.block_diag(*blocks), None, rounds=self.rounds)

    def _frozen(self, x: Tensor) -> Tensor:
        if self.quantized is None:
            return linear(x, self.weight, self.bias, rounds=self.rounds)
        import bitsandbytes

        packed, state = self.quantized
        return bitsandbytes.matmul_4bit(x, packed.t(), quant_state=state, bias=self.bias)

    def quantize(self, device: torch.device | str) -> None:
        """The frozen weight in 4 bits and a scale for every 64 of them, themselves in 8 bits; it moves there alone."""
        from bitsandbytes.functional import quantize_4bit

        here = self.weight.data.to(device)
        self.quantized = quantize_4bit(here, quant_type="nf4", compress_statistics=True)
        self.weight = nn.Parameter(self.weight.new_empty(0), requires_grad=False)

    def merged(self) -> Tensor:
        """What one matrix would have to be to do the same."""
        weight = self.weight if self.quantized is None else _dequantized(*self.quantized)
        weight = weight.detach().float()
        updates = [
            self.lora_B[name].detach() @ self.lora_A[name].detach()
            if name in self.lora_A
            else weight.new_zeros(width, self.in_features)
            for name, width in self.widths.items()
        ]
        return weight + self.scale * torch.cat(updates)


def _dequantized(packed: Tensor, state: Any) -> Tensor:
    from bitsandbytes.functional import dequantize_4bit

    whole: Tensor = dequantize_4bit(packed, state)
    return whole


def adapt(model: nn.Module, trainer: TrainerPlan) -> None:
    """Freeze all there is; linears of the blocks are replaced, under the same names, where they are a target."""
    model.requires_grad_(False)
    adapted = TARGETS[trainer.lora_targets]
    for module in list(model.modules()):
        for name, parts in _parts_of(module).items():
            linear = getattr(module, name)
            if adapted & parts.keys() or trainer.adapter is Adapter.qlora:
                setattr(module, name, AdaptedLinear(linear, parts, adapted, trainer))
    if trainer.precision in AUTOCAST_DTYPES:
        for parameter in model.parameters():
            if not parameter.requires_grad and parameter.dim() >= 2:
                parameter.data = parameter.data.to(AUTOCAST_DTYPES[trainer.precision])


def quantize(model: nn.Module, trainer: TrainerPlan, device: torch.device | str) -> None:
    """Before the model moves to its device, which may not hold it in more than 4 bits: one matrix after the other."""
    if trainer.adapter is Adapter.qlora:
        for module in model.modules():
            if isinstance(module, AdaptedLinear):
                module.quantize(device)


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """Weights of the plain model that does the same; the model's own when nothing is adapted."""
    state = {name: value for name, value in model.state_dict().items() if ".lora_" not in name}
    for name, module in model.named_modules():
        if isinstance(module, AdaptedLinear):
            state[f"{name}.weight"] = module.merged()
    return state


def _parts_of(module: nn.Module) -> dict[str, dict[str, int]]:
    """Its linears, and the named slices of their outputs."""
    if isinstance(module, CausalSelfAttention):
        return {"c_attn": module.widths, "c_proj": {"output": module.c_proj.out_features}}
    if isinstance(module, MLP):
        gate = {"c_gate": {"gate": module.c_gate.out_features}} if hasattr(module, "c_gate") else {}
        return gate | {"c_fc": {"up": module.c_fc.out_features}, "c_proj": {"down": module.c_proj.out_features}}
    return {}
