"""How many parameters does the model have? By group; the groups sum to the total and equal the trainer's module.

GPT-2 as in nanoGPT's `model.py` (Radford et al. 2019); Llama as in Touvron et al. 2023 (arXiv:2307.09288): RMSNorm,
SwiGLU, grouped key/value heads. `bias=True` gives GPT-2 a bias on every linear and LayerNorm; a Llama-like model gets
the query/key/value biases of Qwen2 (arXiv:2407.10671) and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from conf.choices import Family
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
    attention, mlp = layer_matmul_params(model)
    is_gpt2 = model.family is Family.gpt2
    attention_bias, mlp_bias = _layer_bias_params(model) if model.bias else (0, 0)
    norm = model.n_embd * (2 if is_gpt2 and model.bias else 1)
    return ParamCounts(
        token_embedding=model.vocab_size * model.n_embd,
        position_embedding=sequence_length * model.n_embd if is_gpt2 else 0,
        attention=model.n_layer * (attention + attention_bias),
        mlp=model.n_layer * (mlp + mlp_bias),
        norms=(2 * model.n_layer + 1) * norm,
        head=0 if model.tied_head else model.vocab_size * model.n_embd,
    )


def kv_dim(model: ModelPlan) -> int:
    """Width of the keys, and of the values: smaller than n_embd when heads share them (Ainslie et al. 2023)."""
    return model.n_embd // model.n_head * model.n_kv_head


def layer_matmul_params(model: ModelPlan) -> tuple[int, int]:
    """One layer's weight matrices: attention (q, k, v, output) and MLP (up, down; SwiGLU has a gate as well)."""
    attention = 2 * model.n_embd * (model.n_embd + kv_dim(model))
    mlp = (2 if model.family is Family.gpt2 else 3) * model.n_embd * model.d_ff
    return attention, mlp


def matmul_params(model: ModelPlan) -> int:
    """Weights that take part in a matmul, the head included though tied; embeddings are look-ups, norms elementwise."""
    attention, mlp = layer_matmul_params(model)
    return model.n_layer * (attention + mlp) + model.vocab_size * model.n_embd


def _layer_bias_params(model: ModelPlan) -> tuple[int, int]:
    """Biases of one layer's linears: attention, MLP."""
    qkv = model.n_embd + 2 * kv_dim(model)
    if model.family is Family.gpt2:
        return qkv + model.n_embd, model.d_ff + model.n_embd
    return qkv, 0
