"""How many parameters does the model have? By group; the groups sum to the total and equal the trainer's module.

GPT-2 as in nanoGPT's `model.py` (Radford et al. 2019); Llama as in Touvron et al. 2023 (arXiv:2307.09288); biases of
queries, keys and values alone as in Qwen2 (arXiv:2407.10671), a norm of queries and of keys per head as in Qwen3. The
parts are asked for one by one (`model.norm`, `.positions`, `.activation`, ...); no family decides anything here.
"""

from __future__ import annotations

from dataclasses import dataclass

from conf.choices import Activation, AdapterTargets, Norm, Positions
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
    """Learned positions have a row for each of `n_positions`, or of the sequence; rotary ones none."""
    attention, mlp = layer_matmul_params(model)
    attention_bias, mlp_bias = _layer_bias_params(model)
    embedding = model.vocab_size * model.n_embd
    return ParamCounts(
        token_embedding=embedding,
        position_embedding=n_positions(model, sequence_length) * model.n_embd,
        attention=model.n_layer * (attention + attention_bias),
        mlp=model.n_layer * (mlp + mlp_bias),
        norms=(2 * model.n_layer + 1) * norm_params(model)
        + (2 * model.n_layer * head_dim(model) if model.qk_norm else 0),
        head=0 if model.tied_head else embedding,
    )


def n_positions(model: ModelPlan, sequence_length: int) -> int:
    """Rows of the table of learned positions."""
    if model.positions is Positions.rotary:
        return 0
    return sequence_length if model.n_positions is None else model.n_positions


def norm_params(model: ModelPlan) -> int:
    """Of one norm over the stream: a weight, and with biases a LayerNorm has one of those too."""
    return model.n_embd * (2 if model.norm is Norm.layernorm and model.bias else 1)


def head_dim(model: ModelPlan) -> int:
    """Channels of one head."""
    return model.head_dim or model.n_embd // model.n_head


def q_dim(model: ModelPlan) -> int:
    """Width of the queries and of what attention gives out: n_embd, unless head_dim says otherwise."""
    return model.n_head * head_dim(model)


def kv_dim(model: ModelPlan) -> int:
    """Width of the keys, and of the values: smaller when heads share them (Ainslie et al. 2023)."""
    return model.n_kv_head * head_dim(model)


def n_mlp_matrices(model: ModelPlan) -> int:
    """Up and down; SwiGLU has a gate as well (Shazeer 2020)."""
    return 3 if model.activation is Activation.swiglu else 2


def layer_matmul_params(model: ModelPlan) -> tuple[int, int]:
    """One layer's weight matrices: attention (q, k, v, output) and MLP (up, down; SwiGLU has a gate as well)."""
    attention = 2 * model.n_embd * (q_dim(model) + kv_dim(model))
    return attention, n_mlp_matrices(model) * model.n_embd * model.d_ff


def matmul_params(model: ModelPlan) -> int:
    """Weights that take part in a matmul, the head included though tied; embeddings are look-ups, norms elementwise."""
    attention, mlp = layer_matmul_params(model)
    return model.n_layer * (attention + mlp) + model.vocab_size * model.n_embd


def adapter_widths(model: ModelPlan, targets: AdapterTargets) -> list[tuple[int, int]]:
    """Inputs and outputs of what gets a low-rank update in one layer; queries, keys and values have one each."""
    width, queries, keys = model.n_embd, q_dim(model), kv_dim(model)
    if targets is AdapterTargets.query_value:
        return [(width, queries), (width, keys)]
    attention = [(width, queries), (width, keys), (width, keys), (queries, width)]
    if targets is AdapterTargets.attention:
        return attention
    return [*attention, *[(width, model.d_ff)] * (n_mlp_matrices(model) - 1), (model.d_ff, width)]


def adapter_params(model: ModelPlan, targets: AdapterTargets, rank: int) -> int:
    """Weights of all low-rank updates: rank x (input + output) each (Hu et al. 2021)."""
    return model.n_layer * rank * sum(map(sum, adapter_widths(model, targets)))


def _layer_bias_params(model: ModelPlan) -> tuple[int, int]:
    """Biases of one layer's linears: attention, MLP."""
    qkv = q_dim(model) + 2 * kv_dim(model) if model.qkv_bias else 0
    if not model.bias:
        return qkv, 0
    return qkv + model.n_embd, (n_mlp_matrices(model) - 1) * model.d_ff + model.n_embd
