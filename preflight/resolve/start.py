"""Which run do the weights to start from come from, and is its model the one that is asked for?

The weights themselves are compared again when they are read; a run's plan.json tells a bill before anything starts.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.choices import Positions
from conf.schema import Config
from preflight.errors import ConfigError
from preflight.plan import ModelPlan, RunPlan, TrainerPlan
from preflight.planfile import PLAN_NAME, newest_run, read_json
from preflight.resolve.combinations import HF_PREFIX
from preflight.resolve.presets import preset_named
from preflight.resolve.resolution import Resolution, show, with_value

PATH = "trainer.init_from"
LATEST = "latest"  # as with resume=; ./latest is a folder
# Another one of these is another shape or another function; what may be larger is looked at by itself.
FIXED = (
    "n_layer", "n_head", "n_kv_head", "n_embd", "d_ff", "head_dim", "tied_head", "bias", "qkv_bias", "norm",
    "positions", "activation", "qk_norm",
)  # fmt: skip
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
    """A run of another model is refused with the model that it has."""
    given = trainer.init_from
    if given is None or given.startswith(HF_PREFIX):
        return
    try:
        run = read_json(RunPlan, Path(given) / PLAN_NAME, "plan")
    except ConfigError:  # lost or edited: the checkpoint has its plan too, and is compared when it is read
        return
    n_rows, n_own_rows = run.model.n_positions or run.trainer.sequence_length, model.n_positions
    theirs = replace(run.model, n_positions=n_rows)
    ours = replace(model, n_positions=n_own_rows or trainer.sequence_length)
    differing = [name for name in FIXED if getattr(ours, name) != getattr(theirs, name)]
    if theirs.tied_head and "tied_head" in differing:  # both matrices start from the one
        differing.remove("tied_head")
    is_longer = theirs.positions is Positions.learned and (ours.n_positions or 0) > n_rows
    if differing or ours.vocab_size < theirs.vocab_size:
        names = [*differing, *(["vocab_size"] if ours.vocab_size < theirs.vocab_size else [])]
        shown = ", ".join(f"{name} {_typed(theirs, name)} and not {_typed(ours, name)}" for name in names)
        resolution.refuse(PATH, given, f"that run's model, {theirs.name}, has {shown}", model_of(theirs, ours, names))
    elif is_longer:
        message = f"that run's table of positions ends after {n_rows} tokens, {ours.n_positions} are asked for"
        fix = f"trainer.sequence_length={n_rows}" + (" model.n_positions=null" if n_own_rows is not None else "")
        resolution.refuse(PATH, given, message, fix)


def model_of(theirs: ModelPlan, ours: ModelPlan, differing: list[str]) -> str:
    """Overrides that make ours the model of that run, at the end of the command."""
    if theirs.path is not None:
        return f"model=hf model.path={theirs.path}"
    own_preset, preset = preset_named(ours.name), preset_named(theirs.name)
    if ours.path is None and (preset is None or ours.name == theirs.name):
        return " ".join(f"model.{name}={_typed(theirs, name)}" for name in differing)
    base = preset or preset_named(BASE)
    assert base is not None
    words = [f"model={base.name}", *(["model.path=null"] if ours.path is not None else [])]
    for name in (*FIXED, "vocab_size"):
        is_given = ours.path is None and own_preset is not None and getattr(ours, name) != getattr(own_preset, name)
        if is_given or getattr(base, name) != getattr(theirs, name):
            words.append(f"model.{name}={_typed(theirs, name)}")
    return " ".join(words)


def _typed(model: ModelPlan, name: str) -> str:
    value: Any = getattr(model, name)
    return show(value)
