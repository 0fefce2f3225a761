"""Which shape does a model have, and which smaller ones of its kind are there? Reads the YAML of conf/model.

Hydra composes the one model that is asked for; the others are only candidates for a smaller one, so a file that cannot
be read, or that does not describe a model by itself, is left out with a note and stops nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from conf.choices import Activation, Family, Norm, Positions, Tokenizer
from conf.schema import ModelConfig
from preflight.params import count_params
from preflight.plan import ModelPlan

MODEL_DIR = Path(__file__).resolve().parents[2] / "conf" / "model"
SHAPE = ("n_layer", "n_head", "n_kv_head", "n_embd", "d_ff", "vocab_size", "tied_head", "family")
KEPT = ("vocab_size", "bias", "qkv_bias", "qk_norm", "norm", "positions", "activation", "dropout", "n_positions")
COUNTS = ("n_layer", "n_head", "n_kv_head", "n_embd", "d_ff", "vocab_size")
SELF, SCHEMA = "_self_", "schema"  # in a defaults list: the file itself, and its types
LLAMA_FF_MULTIPLE = 256  # Touvron et al. 2023, model.py: 2/3 of 4 x n_embd, rounded up to a multiple


def default_d_ff(family: Family, n_embd: int) -> int:
    """Width of the MLP when none is given."""
    if family is Family.gpt2:
        return 4 * n_embd
    return -(-(8 * n_embd // 3) // LLAMA_FF_MULTIPLE) * LLAMA_FF_MULTIPLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What a family's models are made of where the configuration says nothing."""

    norm: Norm
    positions: Positions
    activation: Activation


STYLES = {
    Family.gpt2: Style(norm=Norm.layernorm, positions=Positions.learned, activation=Activation.gelu),
    Family.llama: Style(norm=Norm.rmsnorm, positions=Positions.rotary, activation=Activation.swiglu),
}


def model_plan(model: ModelConfig) -> ModelPlan:
    """Every `None` replaced."""
    style = STYLES[model.family]
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
        norm=model.norm or style.norm,
        positions=model.positions or style.positions,
        activation=model.activation or style.activation,
        qkv_bias=model.qkv_bias if model.qkv_bias is not None else model.bias,
        qk_norm=model.qk_norm,
        head_dim=model.head_dim if model.head_dim is not None else model.n_embd // max(1, model.n_head),
        n_positions=model.n_positions,
        rope_theta=model.rope_theta,
        norm_eps=model.norm_eps,
        path=model.path,
    )


def changed_shape(model: ModelPlan) -> list[str]:
    """How it differs from the preset whose name it bears, in words; empty for presets and for names of one's own."""
    return [
        f"{field} is {getattr(model, field)}, {model.name} has {getattr(preset, field)}"
        for preset in _presets(MODEL_DIR).models
        if preset.name == model.name
        for field in SHAPE
        if getattr(model, field) != getattr(preset, field)
    ]


def preset_named(name: str) -> ModelPlan | None:
    """As its file has it."""
    return next((preset for preset in _presets(MODEL_DIR).models if preset.name == name), None)


def smaller_models(model: ModelPlan, sequence_length: int) -> tuple[ModelPlan, ...]:
    """Presets of the same family and tokenizer with fewer parameters, the largest first.

    Vocabulary, parts and dropout stay as asked for: they are no part of a model's size. None for a folder's model.
    """
    if model.path is not None:  # a folder's model has no family here: another preset would be another model
        return ()
    limit = count_params(model, sequence_length).total
    sized = []
    for preset in _presets(MODEL_DIR).models:
        if preset.family is not model.family or preset.tokenizer is not model.tokenizer:
            continue
        smaller = replace(preset, **{name: getattr(model, name) for name in KEPT})
        n_params = count_params(smaller, sequence_length).total
        if n_params < limit:
            sized.append((n_params, smaller))
    return tuple(smaller for _, smaller in sorted(sized, key=lambda pair: -pair[0]))


def unread_presets() -> tuple[str, ...]:
    """Which files are no candidates, and why."""
    return _presets(MODEL_DIR).left_out


def preset_names() -> list[str]:
    """Every preset, by name."""
    return sorted(path.stem for path in MODEL_DIR.glob("*.yaml"))


class _Presets(NamedTuple):
    models: tuple[ModelPlan, ...]
    left_out: tuple[str, ...]


@cache
def _presets(folder: Path) -> _Presets:
    from yaml import YAMLError  # type: ignore[import-untyped]

    models, left_out = [], []
    for path in filter(Path.is_file, sorted(folder.glob("*.yaml"))):
        try:
            content = _content(path)
            if content.get("n_layer") == 0:  # the shape is somewhere else (model=hf)
                continue
            models.append(_from_yaml(content))
        except YAMLError as error:
            left_out.append(f"{path.name} ({getattr(error, 'problem', None) or 'no YAML'})")
        except KeyError as error:
            left_out.append(f"{path.name} (no {error.args[0]}, or an unknown one)")
        except (OSError, TypeError, ValueError) as error:
            cause = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
            left_out.append(f"{path.name} ({cause})")
    return _Presets(models=tuple(models), left_out=tuple(left_out))


def _content(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """One file over those that its defaults list names, as Hydra merges them; `_self_` says where it stands itself."""
    import yaml

    if path in above:
        raise ValueError(f"its defaults lead back to {path.stem}")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is seven times faster
    own = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    if not isinstance(own, dict):
        raise TypeError("no mapping of options")
    names = own.pop("defaults", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("its defaults are no list of names")
    content: dict[str, Any] = {}
    for name in names if SELF in names else [*names, SELF]:
        if name == SELF:
            content |= own
        elif name != SCHEMA:
            content |= _content(path.parent / f"{name.removesuffix('.yaml')}.yaml", (*above, path))
    return content


def _from_yaml(content: dict[str, Any]) -> ModelPlan:
    shape = {key: value for key, value in content.items() if key != "recipe"}
    shape["family"] = Family[shape["family"]]
    shape["tokenizer"] = Tokenizer[shape["tokenizer"]]
    plan = model_plan(ModelConfig(**shape, recipe=None))  # type: ignore[arg-type]  # a recipe is no part of the shape
    for name in COUNTS:
        if type(value := getattr(plan, name)) is not int or value < 1:
            raise ValueError(f"{name} is {value}")
    return plan
