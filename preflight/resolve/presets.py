"""Which shape does a model have, and which smaller ones of its kind are there? Reads the YAML of conf/model."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from conf.schema import Family, ModelConfig, Tokenizer
from preflight.params import count_params
from preflight.plan import ModelPlan

MODEL_DIR = Path(__file__).resolve().parents[2] / "conf" / "model"
SHAPE = ("n_layer", "n_head", "n_kv_head", "n_embd", "d_ff", "vocab_size", "tied_head", "family")
LLAMA_FF_MULTIPLE = 256  # Touvron et al. 2023, model.py: 2/3 of 4 x n_embd, rounded up to a multiple


def default_d_ff(family: Family, n_embd: int) -> int:
    """Width of the MLP when none is given."""
    if family is Family.gpt2:
        return 4 * n_embd
    return -(-(8 * n_embd // 3) // LLAMA_FF_MULTIPLE) * LLAMA_FF_MULTIPLE


def model_plan(model: ModelConfig) -> ModelPlan:
    """Every `None` replaced."""
    return ModelPlan(
        name=model.name,
        family=model.family,
        n_layer=model.n_layer,
        n_head=model.n_head,
        n_kv_head=model.n_kv_head if model.n_kv_head is not None else model.n_head,
        n_embd=model.n_embd,
        d_ff=model.d_ff if model.d_ff is not None else default_d_ff(model.family, model.n_embd),
        vocab_size=model.vocab_size,
        tokenizer=model.tokenizer,
        tied_head=model.tied_head,
        bias=model.bias,
        dropout=model.dropout,
    )


def changed_shape(model: ModelPlan) -> list[str]:
    """How it differs from the preset whose name it bears, in words; empty for presets and for names of one's own."""
    same_name = [_from_yaml(content) for content in _preset_contents() if content["name"] == model.name]
    return [
        f"{field} is {getattr(model, field)}, {model.name} has {getattr(preset, field)}"
        for preset in same_name
        for field in SHAPE
        if getattr(model, field) != getattr(preset, field)
    ]


def smaller_models(model: ModelPlan, sequence_length: int) -> tuple[ModelPlan, ...]:
    """Presets of the same family and tokenizer with fewer parameters, the largest first.

    Vocabulary, bias and dropout stay as asked for: they are no part of a model's size.
    """
    limit = count_params(model, sequence_length).total
    sized = []
    for content in _preset_contents():
        if content["family"] != model.family.name or content["tokenizer"] != model.tokenizer.name:
            continue
        smaller = replace(_from_yaml(content), vocab_size=model.vocab_size, bias=model.bias, dropout=model.dropout)
        n_params = count_params(smaller, sequence_length).total
        if n_params < limit:
            sized.append((n_params, smaller))
    return tuple(smaller for _, smaller in sorted(sized, key=lambda pair: -pair[0]))


def preset_names() -> list[str]:
    """Every preset, by name."""
    return sorted(path.stem for path in MODEL_DIR.glob("*.yaml"))


@cache
def _preset_contents() -> list[dict[str, Any]]:
    import yaml  # type: ignore[import-untyped]

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is seven times faster
    return [yaml.load(path.read_text(encoding="utf-8"), Loader=loader) for path in sorted(MODEL_DIR.glob("*.yaml"))]


def _from_yaml(content: dict[str, Any]) -> ModelPlan:
    shape = {key: value for key, value in content.items() if key not in ("defaults", "recipe")}
    shape["family"] = Family[shape["family"]]
    shape["tokenizer"] = Tokenizer[shape["tokenizer"]]
    return model_plan(ModelConfig(**shape, recipe=None))  # type: ignore[arg-type]  # a recipe is no part of the shape
