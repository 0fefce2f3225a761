"""Where do the weights to start from come from, and is their model the one that is asked for?

The weights themselves are compared again when they are read; a run's plan.json tells a bill before anything starts.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.choices import Family, Positions, Tokenizer
from conf.schema import Config, ModelConfig, RecipeConfig
from preflight.errors import ConfigError
from preflight.plan import ModelPlan, RunPlan, TrainerPlan
from preflight.planfile import PLAN_NAME, newest_run, read_json
from preflight.resolve.combinations import HF_PREFIX
from preflight.resolve.presets import model_plan, preset_named
from preflight.resolve.resolution import Resolution, show, with_value

PATH = "trainer.init_from"
LATEST = "latest"  # as with resume=; ./latest is a folder
# Another one of these is another shape or another function; what may be larger is looked at by itself.
FIXED = (
    "n_layer", "n_head", "n_kv_head", "n_embd", "d_ff", "head_dim", "tied_head", "bias", "qkv_bias", "norm",
    "positions", "activation", "qk_norm",
)  # fmt: skip
SIZES = ("n_layer", "n_head", "n_kv_head", "n_embd", "d_ff", "head_dim", "positions")  # whoever wrote the file
BASE = "tiny"  # whose options are changed where a run's model has no preset


def with_latest(config: Config, resolution: Resolution) -> Config:
    """`trainer.init_from=latest` as the newest run with a checkpoint, so that the plan says which one it was."""
    if config.trainer.init_from != LATEST:
        return config
    runs_dir = Path(os.path.abspath(os.path.expanduser(config.runs_dir)))
    folder = newest_run(runs_dir)
    if folder is None:
        resolution.refuse(PATH, LATEST, f"no run with a checkpoint in {runs_dir}", f"{PATH}=null")
    else:
        resolution.provenance[PATH] = f"given: {folder} is the latest run with a checkpoint"
    return with_value(config, PATH, None if folder is None else str(folder))


def check_start(model: ModelPlan, trainer: TrainerPlan, resolution: Resolution) -> None:
    """Weights of another model are refused with the model that they have."""
    given = trainer.init_from
    if given is None:
        return
    is_hf = given.startswith(HF_PREFIX)
    theirs = _of_folder(given.removeprefix(HF_PREFIX)) if is_hf else _of_run(Path(given))
    if theirs is None:
        return
    where, n_rows = "that folder's" if is_hf else "that run's", theirs.n_positions
    ours = replace(model, n_positions=model.n_positions or trainer.sequence_length)
    differing = [name for name in (SIZES if is_hf else FIXED) if getattr(ours, name) != getattr(theirs, name)]
    if theirs.tied_head and "tied_head" in differing:  # both matrices start from the one
        differing.remove("tied_head")
    if ours.vocab_size < theirs.vocab_size:
        differing.append("vocab_size")
    if differing:
        shown = ", ".join(f"{name} {_typed(theirs, name)} and not {_typed(ours, name)}" for name in differing)
        resolution.refuse(PATH, given, f"{where} model, {theirs.name}, has {shown}", model_of(theirs, ours, differing))
    elif theirs.positions is Positions.learned and n_rows is not None and (ours.n_positions or 0) > n_rows:
        message = f"{where} table of positions ends after {n_rows} tokens, {ours.n_positions} are asked for"
        fix = f"trainer.sequence_length={n_rows}" + (" model.n_positions=null" if model.n_positions else "")
        resolution.refuse(PATH, given, message, fix)


def _of_run(folder: Path) -> ModelPlan | None:
    """With the rows that its table has; None: lost or edited, and the checkpoint has its plan too."""
    try:
        run = read_json(RunPlan, folder / PLAN_NAME, "plan")
    except ConfigError:  # compared when the checkpoint is read
        return None
    return replace(run.model, n_positions=run.model.n_positions or run.trainer.sequence_length)


def _of_folder(folder: str) -> ModelPlan | None:
    """As `model=hf model.path=` reads it; None: it cannot be read so, which the reader of its weights tells."""
    from preflight.resolve.hf import from_folder

    aside = Resolution()
    recipe = RecipeConfig(
        sequence_length=1, micro_batch_size=1, tokens_per_step=1, total_tokens=1, learning_rate=1.0
    )  # no part of a shape
    blank = ModelConfig(
        name="hf", family=Family.gpt2, n_layer=0, n_head=0, n_embd=0, vocab_size=0, tokenizer=Tokenizer.other,
        tied_head=True, path=folder, recipe=recipe,
    )  # fmt: skip
    found = from_folder(blank, aside)
    return None if aside.problems else model_plan(found)


def model_of(theirs: ModelPlan, ours: ModelPlan, differing: list[str]) -> str:
    """Overrides that make ours the model of that run, at the end of the command."""
    own_preset, preset = preset_named(ours.name), preset_named(theirs.name)
    if ours.path == theirs.path and (preset is None or ours.name == theirs.name):
        return " ".join(f"model.{name}={_typed(theirs, name)}" for name in differing)
    by_hand = {
        name for name in (*FIXED, "vocab_size")
        if ours.path is None and own_preset is not None and getattr(ours, name) != getattr(own_preset, name)
    }  # fmt: skip
    if theirs.path is not None:
        words, base = ["model=hf", shlex.quote(f"model.path={theirs.path}")], _of_folder(theirs.path) or theirs
    else:
        base = preset or preset_named(BASE) or theirs
        words = [f"model={base.name}", *(["model.path=null"] if ours.path is not None else [])]
    changed = [name for name in (*FIXED, "vocab_size") if getattr(base, name) != getattr(theirs, name)]
    pinned = [name for name in (*FIXED, "vocab_size") if name in by_hand or name in changed]
    return " ".join([*words, *(f"model.{name}={_typed(theirs, name)}" for name in pinned)])


def _typed(model: ModelPlan, name: str) -> str:
    value: Any = getattr(model, name)
    return show(value)
