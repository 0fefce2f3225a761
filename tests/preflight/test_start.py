"""Weights of a run fit the model of that run: another one is refused with a cure that makes it the same."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from resolving import problem_of, resolved

from preflight.planfile import write_json

GPT2 = ("model=gpt2_124m", "hw=1xa100_80gb")


def run_in(runs_dir: Path, name: str, *overrides: str, has_checkpoint: bool = True) -> Path:
    """A run's folder as the launcher and the trainer leave it."""
    folder = runs_dir / name
    (folder / "checkpoints").mkdir(parents=True)
    if has_checkpoint:
        (folder / "checkpoints" / "step_10.pt").touch()
    write_json({"plan": resolved(*overrides)}, folder / "plan.json")
    return folder


def test_latest_is_frozen_as_the_newest_run_with_a_checkpoint(tmp_path: Path):
    run_in(tmp_path, "1-old")
    wanted = run_in(tmp_path, "2-good")
    run_in(tmp_path, "3-without", has_checkpoint=False)
    plan = resolved("trainer.init_from=latest", f"runs_dir={tmp_path}")
    assert plan.trainer.init_from == str(wanted)
    assert plan.provenance["trainer.init_from"] == f"given: {wanted} is the latest run with a checkpoint"


def test_latest_of_no_run_is_refused(tmp_path: Path):
    problem = problem_of("trainer.init_from=latest", f"runs_dir={tmp_path}")
    assert (problem.value, problem.message) == ("latest", f"no run with a checkpoint in {tmp_path}")
    resolved("trainer.init_from=latest", f"runs_dir={tmp_path}", problem.fix)


@pytest.mark.parametrize(
    ("theirs", "ours", "words", "fix"),
    [
        (("model=tiny",), GPT2, "that run's model, tiny, has n_layer 4 and not 12", "model=tiny"),
        (GPT2, ("model=tiny", "model.n_layer=3"), "n_layer 12 and not 3", "model=gpt2_124m model.n_layer=12"),
        (("model=tiny", "model.n_layer=3"), ("model=tiny",), "n_layer 3 and not 4", "model.n_layer=3"),
        (("model=tiny", "model.n_layer=3"), GPT2, "n_layer 3 and not 12", "model=tiny model.n_layer=3"),
        (("model=tiny", "model.vocab_size=999"), ("model=tiny", "model.vocab_size=500"), "vocab_size 999 and not 500",
         "model.vocab_size=999"),
        (("model=tiny", "model.activation=relu2"), ("model=tiny",), "activation relu2", "model.activation=relu2"),
        (("model=tiny", "trainer.sequence_length=64"), ("model=tiny",), "ends after 64", "trainer.sequence_length=64"),
    ],
)  # fmt: skip
def test_another_model_than_that_of_the_run_is_refused(
    tmp_path: Path, theirs: tuple[str, ...], ours: tuple[str, ...], words: str, fix: str
):
    start = f"trainer.init_from={run_in(tmp_path, 'run', *theirs)}"
    problem = problem_of(*ours, start)
    assert words in problem.message
    assert problem.fix == fix
    resolved(*ours, start, *shlex.split(fix))


def test_the_model_of_the_run_is_taken_and_never_lowered(tmp_path: Path):
    plan = resolved(*GPT2, f"trainer.init_from={run_in(tmp_path, 'run', *GPT2)}", "lowering.allow_model=true")
    assert plan.lowering.smaller_models == ()
    resolved("model.tied_head=false", f"trainer.init_from={run_in(tmp_path, 'tied')}")


def test_a_folder_of_another_model_is_refused_with_the_model_of_the_run(tmp_path: Path):
    shape = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 128, "vocab_size": 50257}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    theirs = ("model=hf", f"model.path={tmp_path}")
    start = f"trainer.init_from={run_in(tmp_path, 'run', 'model=tiny')}"
    assert problem_of(*theirs, start).fix == "model=tiny model.path=null"
    resolved(*theirs, start, "model=tiny", "model.path=null")
    start = f"trainer.init_from={run_in(tmp_path, 'other', *theirs)}"
    assert problem_of("model=tiny", start).fix == f"model=hf model.path={tmp_path}"
    resolved("model=tiny", start, *theirs)


def test_weights_of_a_folder_fit_the_model_of_that_folder(tmp_path: Path):
    shape = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 128, "vocab_size": 50257}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    (tmp_path / "model.safetensors").touch()
    start, theirs = f"trainer.init_from=hf:{tmp_path}", ("model=hf", f"model.path={tmp_path}")
    problem = problem_of("model=tiny", "model.n_layer=3", start)
    assert "that folder's model" in problem.message
    assert problem.fix == f"model=hf model.path={tmp_path} model.n_layer=2"
    resolved("model=tiny", "model.n_layer=3", start, *shlex.split(problem.fix))
    assert problem_of(*theirs, "model.n_layer=3", start).fix == "model.n_layer=2"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mixtral"}))
    resolved("model=tiny", start)  # its weights are looked at when they are read
