"""How are the weights called on Hugging Face's side, and how do they lie there? Both ways, as safetensors.

GPT-2 (transformers' GPT2LMHeadModel) has the same names but keeps linears transposed (Conv1D). Llama, Mistral, Qwen2
and Qwen3 have queries, keys and values apart; rotary pairs lie as in `trainers.layers`, so nothing is permuted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conf.choices import Activation, Norm, Positions
from preflight.errors import ConfigError, Problem
from preflight.params import head_dim, kv_dim, q_dim
from preflight.plan import ModelPlan

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
BLOCK = "transformer.h.{i}."
GPT2_LINEARS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
LLAMA_BLOCK = "model.layers.{i}."
LLAMA_NAMES = {  # ours -> theirs, of a block, where one tensor is one tensor
    "ln_1.weight": "input_layernorm.weight",
    "attn.c_proj.weight": "self_attn.o_proj.weight",
    "attn.c_proj.bias": "self_attn.o_proj.bias",
    "attn.q_norm.weight": "self_attn.q_norm.weight",
    "attn.k_norm.weight": "self_attn.k_norm.weight",
    "ln_2.weight": "post_attention_layernorm.weight",
    "mlp.c_gate.weight": "mlp.gate_proj.weight",
    "mlp.c_fc.weight": "mlp.up_proj.weight",
    "mlp.c_proj.weight": "mlp.down_proj.weight",
}
LLAMA_OUTER = {
    "transformer.wte.weight": "model.embed_tokens.weight",
    "transformer.ln_f.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
}
GPT2_ACTIVATIONS = {Activation.gelu: "gelu", Activation.gelu_tanh: "gelu_new", Activation.relu2: "relu2"}


def read_folder(folder: Path, model: ModelPlan) -> dict[str, Tensor]:
    """A state dict under our names; tensors that are no weights (masks) are left out."""
    content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    _refuse_scaled_angles(content, folder)
    theirs = _tensors(folder)
    if content.get("model_type") == "gpt2":
        ours = {name: tensor for name, tensor in _from_gpt2(theirs)}
    else:
        ours = {name: tensor for name, tensor in _from_llama(theirs, model.n_layer)}
    head, table = "lm_head.weight", "transformer.wte.weight"
    if model.tied_head or head not in ours:
        ours[head] = ours[table]
    return ours


def to_hugging_face(
    state: Mapping[str, Tensor], model: ModelPlan, sequence_length: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and the tensors of the class that computes the same; ConfigError: there is none."""
    if (model.positions, model.norm) == (Positions.learned, Norm.layernorm) and model.activation in GPT2_ACTIVATIONS:
        return _gpt2_config(model, sequence_length), dict(_to_gpt2(state, model))
    is_llama = (model.positions, model.norm, model.activation) == (Positions.rotary, Norm.rmsnorm, Activation.swiglu)
    if is_llama and not model.bias and not (model.qkv_bias and model.qk_norm):
        return _llama_config(model, sequence_length), dict(_to_llama(state, model))
    parts = ", ".join(part.name for part in (model.norm, model.positions, model.activation))
    message = f"transformers has no model of these parts: {parts}; gpt2, llama, qwen2 and qwen3 are written"
    raise ConfigError(
        [Problem(path="model", value=model.name, message=message, fix="scripts/sample.py, or our checkpoint")]
    )


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """What from_pretrained reads."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS, {"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _tensors(folder: Path) -> dict[str, Tensor]:
    """Of one file, or of all that the index names."""
    from safetensors.torch import load_file

    files = [WEIGHTS]
    if (folder / INDEX).exists():
        files = sorted(set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
    tensors: dict[str, Tensor] = {}
    for name in files:
        tensors |= load_file(folder / name)
    return tensors


def _from_gpt2(theirs: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in theirs.items():
        ours = name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"  # GPT2Model's lack it
        if ours.endswith((".attn.bias", ".attn.masked_bias")):  # the causal mask, in old files
            continue
        is_linear = ours.endswith(".weight") and ours.removesuffix(".weight").endswith(GPT2_LINEARS)
        yield ours, tensor.t() if is_linear else tensor


def _to_gpt2(state: Mapping[str, Tensor], model: ModelPlan) -> Iterator[tuple[str, Tensor]]:
    """Conv1D and LayerNorm always have a bias there: of zeros, where ours has none."""
    for name, tensor in state.items():
        if name == "lm_head.weight" and model.tied_head:
            continue
        stem = name.removesuffix(".weight")
        is_linear = stem != name and stem.endswith(GPT2_LINEARS)
        yield name, tensor.t().contiguous() if is_linear else tensor
        is_norm = stem != name and stem.rpartition(".")[2].startswith("ln_")
        if (is_linear or is_norm) and f"{stem}.bias" not in state:
            yield f"{stem}.bias", tensor.new_zeros(tensor.size(0))


def _from_llama(theirs: Mapping[str, Tensor], n_layer: int) -> Iterator[tuple[str, Tensor]]:
    named = {name if name.startswith(("model.", "lm_head.")) else f"model.{name}": t for name, t in theirs.items()}
    for ours, name in LLAMA_OUTER.items():
        if name in named:
            yield ours, named[name]
    for i in range(n_layer):
        block, their_block = BLOCK.format(i=i), LLAMA_BLOCK.format(i=i)
        for ours, name in LLAMA_NAMES.items():
            if their_block + name in named:
                yield block + ours, named[their_block + name]
        for kind in ("weight", "bias"):
            parts = [f"{their_block}self_attn.{part}_proj.{kind}" for part in "qkv"]
            if all(part in named for part in parts):
                yield f"{block}attn.c_attn.{kind}", torch.cat([named[part] for part in parts])


def _to_llama(state: Mapping[str, Tensor], model: ModelPlan) -> Iterator[tuple[str, Tensor]]:
    for ours, name in LLAMA_OUTER.items():
        if not (ours == "lm_head.weight" and model.tied_head):
            yield name, state[ours]
    for i in range(model.n_layer):
        block, their_block = BLOCK.format(i=i), LLAMA_BLOCK.format(i=i)
        for ours, name in LLAMA_NAMES.items():
            if block + ours in state:
                yield their_block + name, state[block + ours]
        for kind in ("weight", "bias"):
            if (whole := state.get(f"{block}attn.c_attn.{kind}")) is not None:
                widths = [q_dim(model), kv_dim(model), kv_dim(model)]
                for part, tensor in zip("qkv", whole.split(widths), strict=True):
                    yield f"{their_block}self_attn.{part}_proj.{kind}", tensor.contiguous()


def _gpt2_config(model: ModelPlan, sequence_length: int) -> dict[str, Any]:
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), model.dropout)
    if model.qk_norm or model.n_kv_head != model.n_head or q_dim(model) != model.n_embd:
        message = "GPT2LMHeadModel has neither query-key norms nor grouped heads nor a head_dim of its own"
        raise ConfigError([Problem(path="model", value=model.name, message=message, fix="our checkpoint as it is")])
    return dropout | {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": model.n_layer,
        "n_head": model.n_head,
        "n_embd": model.n_embd,
        "n_inner": model.d_ff,
        "n_positions": model.n_positions or sequence_length,
        "vocab_size": model.vocab_size,
        "activation_function": GPT2_ACTIVATIONS[model.activation],
        "layer_norm_epsilon": model.norm_eps,
        "tie_word_embeddings": model.tied_head,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _llama_config(model: ModelPlan, sequence_length: int) -> dict[str, Any]:
    kind, title = ("qwen3", "Qwen3") if model.qk_norm else ("qwen2", "Qwen2") if model.qkv_bias else ("llama", "Llama")
    return {
        "architectures": [f"{title}ForCausalLM"],
        "model_type": kind,
        "num_hidden_layers": model.n_layer,
        "num_attention_heads": model.n_head,
        "num_key_value_heads": model.n_kv_head,
        "head_dim": head_dim(model),
        "hidden_size": model.n_embd,
        "intermediate_size": model.d_ff,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": sequence_length,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "tie_word_embeddings": model.tied_head,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _refuse_scaled_angles(content: Mapping[str, Any], folder: Path) -> None:
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        message = f"its rotary angles are scaled ({kind}), which the trainer does not do: it would be another model"
        raise ConfigError([
            Problem(path="trainer.init_from", value=f"hf:{folder}", message=message, fix="a model without rope_scaling")
        ])  # fmt: skip
