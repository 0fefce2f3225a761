"""What shape has the model in a Hugging Face folder? `model=hf model.path=DIR` reads DIR/config.json and nothing else.

The names are those of transformers' configuration classes, the defaults theirs too (GPT2Config, LlamaConfig,
MistralConfig, Qwen2Config, Qwen3Config). An architecture that is not modelled is refused by name, never guessed: a
near miss (experts, parallel blocks, scaled embeddings) would bill another model. What costs the same but is not
computed is told (`hf_notes`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.choices import Activation, Family, Norm, Positions, Tokenizer
from conf.schema import Config, ModelConfig
from preflight.resolve.hf_notes import longest_made_for, notes, refuse_other_parts, truth
from preflight.resolve.resolution import Resolution

CONFIG_NAME = "config.json"
PROCESSOR_TOKENS_PER_STEP = 16_384  # of conf/model/gpt2_10m.yaml, which is trained on processors
VOCABULARIES = {256: Tokenizer.byte, 50257: Tokenizer.gpt2, 50304: Tokenizer.gpt2}
ACTIVATIONS = {
    "gelu": Activation.gelu,
    "gelu_new": Activation.gelu_tanh,
    "gelu_pytorch_tanh": Activation.gelu_tanh,
    "gelu_fast": Activation.gelu_tanh,
    "relu2": Activation.relu2,
}
GPT2_SWITCHES = (
    ("add_cross_attention", False), ("scale_attn_by_inverse_layer_idx", False), ("scale_attn_weights", True),
)  # fmt: skip
Shape = dict[str, Any]


def from_folder(model: ModelConfig, resolution: Resolution, sequence_length: int | None = None) -> ModelConfig:
    """The same options with the folder's shape in place of zeros; without `model.path` just the same options."""
    if model.path is None:
        if model.n_layer == 0 and model.name == "hf":
            message = "model=hf needs the folder that holds config.json"
            resolution.refuse("model.path", None, message, "model.path=DIR")
            return _placeholder(model)
        return model
    content = _content(model.path, resolution)
    shape = _shape(content, model.path, resolution) if content is not None else None
    if content is None or shape is None:
        return _placeholder(model)
    resolution.provenance["model"] = f"detected: {shape.pop('model_type')} of {_file(model.path)}"
    given = {name: value for name in ("n_layer", "n_head", "n_embd", "vocab_size") if (value := getattr(model, name))}
    given |= {name: value for name in OPTIONAL if (value := getattr(model, name)) is not None and name in shape}
    recipe = model.recipe
    longest = shape.get("n_positions") or longest_made_for(content)
    if longest is not None and longest < recipe.sequence_length:
        whole = next(length for length in range(longest, 0, -1) if recipe.tokens_per_step % length == 0)
        recipe = replace(recipe, sequence_length=whole)
    length = recipe.sequence_length if sequence_length is None else sequence_length
    for field, word in notes(content, length).items():
        resolution.provenance[f"model.path.{field}"] = f"detected: {word}"
    tokenizer = VOCABULARIES.get(shape["vocab_size"], model.tokenizer)
    name = Path(_folder(model.path)).name if model.name == "hf" else model.name
    shape |= given
    return replace(model, **shape, name=name or "hf", recipe=recipe, tokenizer=tokenizer, path=_folder(model.path))


def for_processor(config: Config, resolution: Resolution) -> Config:
    """The recipe of a folder's model is nobody's: what is a step of seconds on a card is one of minutes here."""
    recipe = config.model.recipe
    is_whole = PROCESSOR_TOKENS_PER_STEP % (config.trainer.sequence_length or recipe.sequence_length) == 0
    if (
        config.trainer.tokens_per_step is not None
        or recipe.tokens_per_step <= PROCESSOR_TOKENS_PER_STEP
        or not is_whole
    ):
        return config
    resolution.provenance["model.recipe.tokens_per_step"] = (
        f"default: {PROCESSOR_TOKENS_PER_STEP:,} tokens a step, for a processor; "
        f"trainer.tokens_per_step={recipe.tokens_per_step} is what a card gets"
    )
    smaller = replace(recipe, tokens_per_step=PROCESSOR_TOKENS_PER_STEP)
    return replace(config, model=replace(config.model, recipe=smaller))


OPTIONAL = ("n_kv_head", "d_ff", "qkv_bias", "norm", "positions", "activation", "head_dim", "n_positions")


def _placeholder(model: ModelConfig) -> ModelConfig:
    """A sound shape, so that the other problems of the configuration are found in the same go."""
    return replace(model, path=None, n_layer=1, n_head=1, n_embd=64, vocab_size=256)


def _folder(path: str) -> str:
    place = Path(path).expanduser()
    return os.path.abspath(place.parent if os.path.isfile(place) else place)


def _file(path: str) -> Path:
    """`config.json` itself may be given too."""
    place = Path(path).expanduser()
    return place / CONFIG_NAME if os.path.isdir(place) else place


def _content(path: str, resolution: Resolution) -> Mapping[str, Any] | None:
    """None: it cannot be read; the problem is noted."""
    file = _file(path)
    fix = "model.path=DIR with the config.json that save_pretrained writes"
    if os.path.exists(file) and not os.path.isfile(file):  # a pipe or a device is waited for, or never ends
        resolution.refuse("model.path", path, f"{file} is no file", fix)
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        resolution.refuse("model.path", path, f"there is no {file}; a name on the hub is not looked up", fix)
    except (OSError, UnicodeDecodeError) as error:
        resolution.refuse("model.path", path, f"{file} cannot be read: {error}", fix)
    except (ValueError, RecursionError) as error:  # also numbers of more digits than Python reads
        resolution.refuse("model.path", path, f"{file} is no JSON: {error}", fix)
    else:
        if isinstance(content, dict):
            return content
        resolution.refuse("model.path", path, f"{file} holds no mapping of options", fix)
    return None


def _shape(content: Mapping[str, Any], path: str, resolution: Resolution) -> Shape | None:
    """Fields of ModelConfig; None: not modelled, or something is missing, and the problem is noted."""
    model_type = str(content.get("model_type", "unknown"))
    reader = READERS.get(model_type)
    if reader is None:
        message = f"architecture {model_type} is not modelled; modelled are {', '.join(READERS)}"
        resolution.refuse(
            "model.path", path, message, "model=llama_7b, or explicit sizes: model.n_layer=... model.n_embd=..."
        )
        return None
    try:
        refuse_other_parts(content)
        shape = reader(content)
    except KeyError as error:
        resolution.refuse("model.path", path, f"its config.json lacks {error.args[0]}", "model.path=DIR")
        return None
    except (TypeError, ValueError, OverflowError) as error:
        resolution.refuse("model.path", path, f"its config.json is not understood: {error}", "model.path=DIR")
        return None
    return shape | {"model_type": model_type}


def _gpt2(content: Mapping[str, Any]) -> Shape:
    """transformers' GPT2Config."""
    activation = content.get("activation_function", "gelu_new")
    for name, modelled in GPT2_SWITCHES:
        if content.get(name, modelled) is not modelled:
            raise ValueError(f"{name}={content[name]} is not modelled")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ValueError(f"activation_function={activation} is not modelled")
    n_embd = _count(content, "n_embd", 768)
    return {
        "family": Family.gpt2,
        "n_layer": _count(content, "n_layer", 12),
        "n_head": _count(content, "n_head", 12),
        "n_embd": n_embd,
        "d_ff": 4 * n_embd if content.get("n_inner") is None else _count(content, "n_inner"),
        "vocab_size": _count(content, "vocab_size", 50257),
        "n_positions": _count(content, "n_positions", 1024),
        "norm": Norm.layernorm,
        "positions": Positions.learned,
        "activation": ACTIVATIONS[activation],
        "norm_eps": float(content.get("layer_norm_epsilon", 1e-5)),
        "tied_head": truth(content, "tie_word_embeddings", True),
        "bias": True,
        "dropout": float(content.get("resid_pdrop", 0.1)),
    }


def _llama_like(*, ties: bool = False, qkv_bias: bool = False, qk_norm: bool = False) -> Callable[..., Shape]:
    """transformers' LlamaConfig and those that share its block; what differs between them by default is named."""

    def read(content: Mapping[str, Any]) -> Shape:
        activation = content.get("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise ValueError(f"hidden_act={activation} is not modelled")
        for name in ("mlp_bias", "attention_bias"):
            if content.get(name):
                raise ValueError(f"{name}={content[name]} is not modelled")
        n_head, n_embd = _count(content, "num_attention_heads"), _count(content, "hidden_size")
        shape = {
            "family": Family.llama,
            "n_layer": _count(content, "num_hidden_layers"),
            "n_head": n_head,
            "n_kv_head": n_head
            if content.get("num_key_value_heads") is None
            else _count(content, "num_key_value_heads"),
            "n_embd": n_embd,
            "d_ff": _count(content, "intermediate_size"),
            "vocab_size": _count(content, "vocab_size"),
            "norm": Norm.rmsnorm,
            "positions": Positions.rotary,
            "activation": Activation.swiglu,
            "tied_head": truth(content, "tie_word_embeddings", ties),
            "bias": False,
            "qkv_bias": qkv_bias,
            "qk_norm": qk_norm,
            "rope_theta": _rope_theta(content),
            "norm_eps": float(content.get("rms_norm_eps", 1e-6)),
            "dropout": float(content.get("attention_dropout", 0.0)),
        }
        if content.get("head_dim") is not None or qk_norm:
            shape["head_dim"] = _count(content, "head_dim", 128)
        return shape

    return read


READERS: dict[str, Callable[..., Shape]] = {
    "gpt2": _gpt2,
    "llama": _llama_like(),
    "mistral": _llama_like(),
    "qwen2": _llama_like(qkv_bias=True),
    "qwen3": _llama_like(qk_norm=True),
}


def _rope_theta(content: Mapping[str, Any]) -> float:
    """transformers 5 keeps it in `rope_parameters`."""
    rope = content.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"rope_parameters={rope} is no mapping")
    return float(rope.get("rope_theta", content.get("rope_theta", 10_000.0)))


def _count(content: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = content[name] if default is None else content.get(name, default)
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}={value} is no count")
    return value
