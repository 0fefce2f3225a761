"""Which names may stand in an override, what type each takes, and what did somebody mean who wrote another one?"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

from conf.schema import Config

# What other programs call it (nanoGPT, Hugging Face, Lightning, torchrun) -> our path.
SYNONYMS = {
    "accumulate_grad_batches": "trainer.tokens_per_step",
    "amp": "trainer.precision",
    "batch_size": "trainer.micro_batch_size",
    "block_size": "trainer.sequence_length",
    "card": "hw.card",
    "config": "experiment",
    "context_length": "trainer.sequence_length",
    "cost": "budget.max_cost_usd",
    "country": "hw.country",
    "dataset": "data",
    "device": "hw",
    "devices": "hw",
    "dryrun": "dry_run",
    "dtype": "trainer.precision",
    "gpu": "hw",
    "gpus": "hw",
    "grad_accum": "trainer.tokens_per_step",
    "grad_accum_steps": "trainer.tokens_per_step",
    "gradient_accumulation_steps": "trainer.tokens_per_step",
    "gradient_checkpointing": "trainer.activation_checkpointing",
    "hardware": "hw",
    "hours": "budget.max_hours",
    "init_from": "resume",
    "lr": "trainer.learning_rate",
    "max_hours": "budget.max_hours",
    "max_iters": "trainer.n_steps",
    "max_lr": "trainer.learning_rate",
    "max_seq_length": "trainer.sequence_length",
    "max_steps": "trainer.n_steps",
    "n_gpus": "hw.n_gpus_per_node",
    "n_tokens": "trainer.total_tokens",
    "nnodes": "hw.n_nodes",
    "nproc_per_node": "hw.n_gpus_per_node",
    "num_gpus": "hw.n_gpus_per_node",
    "num_nodes": "hw.n_nodes",
    "out_dir": "runs_dir",
    "output_dir": "runs_dir",
    "per_device_train_batch_size": "trainer.micro_batch_size",
    "price": "hw.price_usd_per_hour",
    "seq_len": "trainer.sequence_length",
    "steps": "trainer.n_steps",
    "tokens": "trainer.total_tokens",
    "wandb": "tracking",
}

# Other names of presets and of values.
NICKNAMES = {
    "gpt2": "gpt2_124m",
    "gpt2_small": "gpt2_124m",
    "gpt2_medium": "gpt2_350m",
    "gpt2_large": "gpt2_774m",
    "gpt2_xl": "gpt2_1558m",
    "nanogpt": "gpt2_124m",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "half": "fp16",
    "16": "fp16",
    "32": "fp32",
    "mixed": "auto",
    "true": "full",
}

# Where 10B is 10,000,000,000 and nothing else. A step of 0.5M tokens is 2^19 to many, so it is not among them.
SHORT_COUNTS = ("trainer.total_tokens",)


def without_none(hint: Any) -> tuple[Any, bool]:
    """The type beside `None`, and whether `null` is allowed."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [arg for arg in typing.get_args(hint) if arg is not types.NoneType]
        return others[0], True
    return hint, False


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def hint_of(path: str) -> Any | None:
    """The annotation at a dotted path; None when there is no such option."""
    hint: Any = Config
    for name in path.split("."):
        kind, _ = without_none(hint)
        if not is_dataclass(kind) or name not in (hints := _hints(typing.cast("type", kind))):
            return None
        hint = hints[name]
    return hint


def _walk(kind: type, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    hints = _hints(kind)
    for item in fields(kind):
        hint, _ = without_none(hints[item.name])
        path = prefix + item.name
        if is_dataclass(hint):
            yield from _walk(typing.cast("type", hint), path + ".")
        else:
            yield path, hints[item.name], None if item.default is MISSING else item.default


@cache
def all_options() -> dict[str, tuple[Any, Any]]:
    """Every dotted path that takes a value -> its annotation and its default."""
    return {path: (hint, default) for path, hint, default in _walk(Config, "")}


def is_list(hint: Any) -> bool:
    """An option that takes several values."""
    return typing.get_origin(without_none(hint)[0]) is list


def describe(hint: Any) -> str:
    """What may stand right of the `=`, in words."""
    kind, optional = without_none(hint)
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if isinstance(kind, type) and issubclass(kind, Enum):
        text = "one of " + ", ".join(member.name for member in kind)
    elif is_list(hint):
        text = "a list such as [a,b]"
    else:
        text = words.get(kind, "a group of options")
    return text + (", or null" if optional else "")


def with_decimal_point(path: str, text: str) -> str | None:
    """`1.5` for `1,5` where a number with decimals is wanted; None: not such a text."""
    hint = hint_of(path)
    if hint is None or without_none(hint)[0] is not float or not re.fullmatch(r"\d+,\d+", text):
        return None
    return text.replace(",", ".")


def nearest(word: str, names: Iterable[str], n: int = 3, cutoff: float = 0.6) -> list[str]:
    """The names that look like the word, the likeliest first."""
    from difflib import get_close_matches  # not at module level: only mistakes need it

    by_lower = {name.lower(): name for name in names}
    return [by_lower[match] for match in get_close_matches(word.lower(), by_lower, n=n, cutoff=cutoff)]


def likely_paths(key: str, groups: Iterable[str]) -> list[str]:
    """Options or groups that somebody who typed `key` may have meant."""
    cleaned = key.replace("-", "_")
    paths = [*([] if "." in cleaned else groups), *all_options()]
    if cleaned in paths:
        return [cleaned]
    leaf = cleaned.rpartition(".")[2]
    if leaf.lower() in SYNONYMS:
        return [SYNONYMS[leaf.lower()]]
    same_leaf = [path for path in paths if path.rpartition(".")[2] == leaf]
    if same_leaf:  # what people give stands in trainer.*; a model's recipe only has its defaults
        return sorted(same_leaf, key=lambda path: path.startswith("model.recipe."))
    spelt_alike = nearest(cleaned, paths, cutoff=0.85)
    if spelt_alike:
        return spelt_alike
    by_leaf: dict[str, list[str]] = {}
    for path in paths:
        by_leaf.setdefault(path.rpartition(".")[2], []).append(path)
    from_leaf = [path for match in nearest(leaf, by_leaf, cutoff=0.65) for path in by_leaf[match]]
    whole = [] if "." in cleaned else nearest(cleaned, paths)  # with a dot, the part before it would decide alone
    return list(dict.fromkeys([*whole, *from_leaf]))[:3]
