import os
import shlex
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resolving import CREATED_AT, LAPTOP, RTX_4090, config_of, problem_of, problems_of, resolved, with_gpus

from conf.register import options
from preflight.errors import PreflightError
from preflight.plan import RunPlan
from preflight.planfile import from_jsonable, to_jsonable
from preflight.resolve.resolve import VERSION, resolve
from preflight.resolve.texts import RUNGS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("model", [name for name in options("model") if name != "hf"])  # hf needs a folder
@pytest.mark.parametrize("hw", ["auto", "8xh100", "cpu"])
def test_resolve_plans_every_model(model, hw):
    plan = resolved(f"model={model}", f"hw={hw}")
    trainer = plan.trainer
    assert plan.model.name == plan.name == model
    assert trainer.tokens_per_step == (
        trainer.sequence_length * trainer.micro_batch_size * trainer.grad_accum_steps * plan.hw.world_size
    )
    assert from_jsonable(RunPlan, to_jsonable(plan)) == plan


@pytest.mark.parametrize("experiment", options("experiment"))
def test_resolve_plans_every_experiment(experiment):
    plan = resolved(f"experiment={experiment}")
    assert plan.name == experiment
    assert not [path for path, origin in plan.provenance.items() if origin.startswith("recipe:")]


def test_resolve_keeps_what_the_plan_is_about():
    plan = resolved("seed=7", "name=first", "runs_dir=some/runs", "tracking.notes=baseline", "tracking.tags=[a,b]")
    assert (plan.seed, plan.name, plan.created_at, plan.command) == (7, "first", CREATED_AT, "python launch.py")
    assert plan.runs_dir == os.path.abspath("some/runs")
    assert (plan.tracking.notes, plan.tracking.tags) == ("baseline", ("a", "b"))
    assert (plan.software.python, plan.software.torch) == ("3.11.7", "2.13.0")


def test_version_is_the_one_of_the_project():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION


def test_resolve_tells_all_problems_of_all_parts_at_once():
    problems = problems_of(
        "hw.country=atlantis",
        "model.n_head=7",
        "trainer.n_steps=0",
        "trainer.learning_rate=nan",
        "data=text",
        "lowering.keep=[speed]",
        "name=a/b",
        "trainer.precision=fp16",
        "trainer.tokens_per_step=5000",
        "budget.max_memory_fraction=1.5",
    )
    assert {problem.path for problem in problems} == {
        "hw.country",
        "model.n_embd",
        "trainer.n_steps",
        "trainer.learning_rate",
        "data.path",
        "lowering.keep",
        "name",
        "trainer.precision",
        "trainer.tokens_per_step",
        "budget.max_memory_fraction",
    }
    assert all(problem.fix and problem.message for problem in problems)


# one fault each -> path, words, a fix that is tried
FAULTS = [
    (["model.n_embd=100", "model.n_head=3"], "model.n_embd", "valid are 99 or 102", "model.n_embd=102"),
    (["model=llama_1b", "model.n_kv_head=5"], "model.n_kv_head", "must divide the 32 heads", "model.n_kv_head=4"),
    (["name=my run"], "name", "letters, digits", "name=my-run"),
    (["name=..."], "name", "letters, digits", "name=run"),
    (
        ["lowering.rungs=[batch,batch]"],
        "lowering.rungs",
        "names a rung twice",
        "'lowering.rungs=[batch]'",
    ),
    (["lowering.keep=[speed,batch]"], "lowering.keep", "no such rung: speed", "'lowering.keep=[batch]'"),
    (
        ["lowering.keep=[speed]"],
        "lowering.keep",
        "there are batch, loss_chunk, checkpointing",
        "'lowering.keep=[batch,precision]'",
    ),
    (["hw=9090"], "hw", "9090 is no card of the catalog; the nearest are", "hw=5090"),
    (["hw=1xfoo"], "hw", "nor is one like it; action=compare lists all cards", "hw=auto action=compare"),
    (["hw=tpu"], "hw", "nor is one like it", "hw=auto action=compare"),
    (["hw=4090x4"], "hw", "did you mean hw=4x4090?", "hw=4x4090"),
    (["hw=2x4090x4"], "hw", "did you mean hw=2x4x4090?", "hw=2x4x4090"),
    (["hw=h100x8"], "hw", "did you mean hw=8xh100?", "hw=8xh100"),
    (["hw=4"], "hw", "did you mean hw=4x4090?", "hw=4x4090"),
    (["hw=2x8"], "hw", "did you mean hw=2x8x4090?", "hw=2x8x4090"),
    (["hw=cuda"], "hw", "no GPU is seen here", "hw=1x4090 dry_run=true"),
    (["hw=2xgpu"], "hw", "no GPU is seen here", "hw=2x4090 dry_run=true"),
    (["hw.country=Germny"], "hw.country", "near: germany", "hw.country=germany"),
    (["hw.country=untied states"], "hw.country", "near: united states", "'hw.country=united states'"),
    (["hw.country=atlantis"], "hw.country", "no electricity data for 'atlantis'", "hw.country=world"),
    (
        ["hw=v100", "model=gpt2_124m", "trainer.precision=bf16"],
        "trainer.precision",
        "this card has 7.0",
        "trainer.precision=fp16",
    ),
    (
        ["hw=t4", "model=gpt2_124m", "trainer.precision=tf32"],
        "trainer.precision",
        "no TF32 units",
        "trainer.precision=fp16",
    ),
    (["trainer.precision=fp16"], "trainer.precision", "CPUs have no fast fp16", "trainer.precision=bf16"),
    (
        ["trainer.tokens_per_step=4096", "trainer.n_steps=5", "trainer.total_tokens=1e6"],
        "trainer.n_steps",
        "are 244 steps; give one of the two",
        "trainer.n_steps=null",
    ),
    (
        ["trainer.tokens_per_step=4096", "trainer.n_steps=5", "trainer.total_tokens=10"],
        "trainer.n_steps",
        "are 0 steps; give one of the two",
        "trainer.total_tokens=null",
    ),
    (
        ["trainer.tokens_per_step=4096", "trainer.total_tokens=100"],
        "trainer.total_tokens",
        "one step alone has 4,096 tokens",
        "trainer.total_tokens=4096",
    ),
    (["data=openwebtext"], "data", "go up to 50,256", "data=stdlib"),
    (["model=llama_7b", "data=stdlib"], "data", "tokenizer of its own", None),
    (["data.path=/etc"], "data.path", "has no effect with data=auto", None),
    (["hw.custom.watts=3"], "hw.custom.watts", "has no effect with hw.card=auto", None),
    (["hw=mps"], "hw.card", "no Apple GPU here", "hw=auto"),
    (["model.vocab_size=100"], "model.vocab_size", "bytes go up to 255", "model.vocab_size=256"),
    (["data.val_fraction=1"], "data.val_fraction", "below 1", "data.val_fraction=0.1"),
]


@pytest.mark.parametrize(("typed", "path", "words", "fix"), FAULTS, ids=[" ".join(fault[0]) for fault in FAULTS])
def test_contradiction_is_explained_and_its_fix_works(typed, path, words, fix):
    problem = problem_of(*typed)
    assert problem.path == path
    assert words in problem.message
    if fix is None:
        assert problem.fix
        return
    assert problem.fix == fix
    resolved(*typed, *shlex.split(fix))  # simply added to the end: the last one counts


@pytest.mark.parametrize(("asked", "fix"), [("gpu", "auto"), ("cuda", "auto"), ("2xgpu", "2xauto")])
def test_any_gpu_means_the_ones_that_are_here(asked, fix):
    machine = with_gpus(RTX_4090, RTX_4090)
    problem = problem_of(f"hw={asked}", "model=gpt2_124m", machine=machine)
    assert problem.fix == f"hw={fix}"
    assert resolved(f"hw={asked}", "model=gpt2_124m", problem.fix, machine=machine).hw.n_gpus_per_node == 2


def test_rungs_can_all_be_kept():
    assert resolved(f"lowering.keep=[{','.join(RUNGS)}]").lowering.keep == RUNGS


def test_lowering_all_has_every_rung_in_the_documented_order():
    assert resolved("lowering=all").lowering.rungs == RUNGS
    assert resolved().lowering.rungs == ("batch", "precision", "model")


def test_provenance_tells_given_from_recipe_default_and_detected():
    origins = resolved("trainer.learning_rate=1e-3").provenance
    assert origins["trainer.learning_rate"] == "given"
    assert origins["trainer.micro_batch_size"] == "recipe"
    assert origins["trainer.compile"] == "default"
    assert origins["hw.card"] == "detected"


def test_resolve_touches_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = config_of("runs_dir=runs", "data.dir=data")
    resolve(config, LAPTOP, command="", created_at=CREATED_AT)
    assert list(tmp_path.iterdir()) == []


VALUES = st.one_of(st.integers(-3, 10**6), st.sampled_from([10**18, 10**30]), st.floats(), st.none())
PATHS = [
    "trainer.micro_batch_size", "trainer.tokens_per_step", "trainer.sequence_length", "trainer.n_steps",
    "trainer.total_tokens", "trainer.learning_rate", "trainer.warmup_fraction", "trainer.eval_interval",
    "trainer.eval_tokens", "trainer.log_interval", "model.n_layer", "model.n_head", "model.n_kv_head", "model.n_embd",
    "model.d_ff", "model.vocab_size", "model.dropout", "hw.n_nodes", "hw.n_gpus_per_node", "hw.price_usd_per_hour",
    "hw.watts", "budget.max_hours", "budget.max_memory_fraction", "data.val_fraction", "seed",
]  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(
    values=st.dictionaries(st.sampled_from(PATHS), VALUES, max_size=4),
    hw=st.sampled_from(["auto", "cpu", "4x4090", "2x8xh100", "v100"]),
    has_gpus=st.booleans(),
)
def test_any_values_give_a_plan_or_an_explanation(values, hw, has_gpus):
    typed = [f"{path}={'null' if value is None else value}" for path, value in values.items()]
    machine = with_gpus(RTX_4090, RTX_4090, RTX_4090) if has_gpus else LAPTOP
    try:
        plan = resolved(f"hw={hw}", *typed, machine=machine)
    except PreflightError as error:
        assert str(error)  # noqa: PT017 - a plan is as good an answer
        return
    trainer = plan.trainer
    assert trainer.tokens_per_step == (
        trainer.sequence_length * trainer.micro_batch_size * trainer.grad_accum_steps * plan.hw.world_size
    )
    assert trainer.n_steps >= 1
    assert 0 <= trainer.n_warmup_steps <= trainer.n_steps
