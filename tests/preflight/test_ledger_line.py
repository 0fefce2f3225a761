"""Lines of older programs are read as if written today; lines that cannot be are told and passed over."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_machine import SimulatedMachine, cpu_plan

from conf.choices import Norm, Positions
from preflight.calibration.calibrate import calibrate
from preflight.ledger_line import LEDGER_VERSION, sound_line
from preflight.plan import RunPlan
from preflight.record import append_line, read_ledger
from tests.conftest import LLAMA_7B, build_plan

MakePlan = Callable[..., RunPlan]
# As version 1 wrote them: what came later is not there.
LATER_MODEL_FIELDS = ("norm", "positions", "activation", "qkv_bias", "qk_norm", "head_dim", "n_positions", "rope_theta",
                      "norm_eps", "path")  # fmt: skip
LATER_TRAINER_FIELDS = ("attention", "optimizer", "optimizer_kernel", "parallel", "adapter", "loss_chunk_tokens")


def line(plan: RunPlan, **fields: Any) -> dict[str, Any]:
    """A measured run."""
    run = SimulatedMachine(pace=2.0).run(plan)
    return {
        "schema_version": LEDGER_VERSION, "run_id": "r", "name": plan.name, "created_at": plan.created_at,
        "decision": "go", "exit_code": 0, "estimate": {}, **run, **fields,
    }  # fmt: skip


def of_version_1(document: dict[str, Any]) -> dict[str, Any]:
    old = copy.deepcopy(document) | {"schema_version": 1}
    for name in LATER_MODEL_FIELDS:
        del old["plan"]["model"][name]
    for name in LATER_TRAINER_FIELDS:
        del old["plan"]["trainer"][name]
    return old


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    new = copy.deepcopy(document)
    *above, last = path.split(".")
    place = new
    for name in above:
        place = place[name]
    place[last] = value
    return new


def test_a_line_of_version_1_calibrates_the_same_plan_today(tmp_path: Path, make_plan: MakePlan) -> None:
    plan = cpu_plan(make_plan)
    append_line(tmp_path / "ledger.jsonl", of_version_1(line(plan)))
    ledger = read_ledger(tmp_path)
    assert (ledger.warnings, ledger.records[0]["schema_version"]) == ((), LEDGER_VERSION)
    factor = calibrate(plan, ledger.records, None).factors["step_seconds"]
    assert factor.scope == "same plan"
    assert factor.value == pytest.approx(2.0, rel=0.02)


def test_version_1_knew_the_parts_of_a_block_by_its_family() -> None:
    llama = sound_line(of_version_1(line(build_plan(model=LLAMA_7B))))
    gpt2 = sound_line(of_version_1(line(build_plan())))
    assert isinstance(llama, dict)
    assert isinstance(gpt2, dict)
    assert (llama["plan"]["model"]["norm"], llama["plan"]["model"]["positions"]) == (
        Norm.rmsnorm.name,
        Positions.rotary.name,
    )
    assert "norm" not in gpt2["plan"]["model"]  # GPT-2's are the defaults


def test_migration_leaves_the_line_that_came_in_alone() -> None:
    old = of_version_1(line(build_plan(model=LLAMA_7B)))
    before = json.dumps(old)
    sound_line(old)
    assert json.dumps(old) == before


NONSENSE = {
    "plan.model.n_layer": ["4", 0, -1, 1.5, None, True, 10**400, [4]],
    "plan.model.family": ["mamba", 3, None],
    "plan.model.dropout": ["0.1", None],
    "plan.trainer.micro_batch_size": ["8", 0, None],
    "plan.trainer.precision": ["fp8", 16],
    "plan.trainer.compile": ["yes", 1],
    "plan.hw.n_nodes": [0, "two"],
    "plan.hw.card": ["4090", None, [1]],
    "plan.tracking.backend": ["mlflow"],
    "plan.model": [None, [], "gpt2"],
    "plan.hw": [None, 4],
    "estimate": [None, 3, []],
    "actual": ["done", 3],
    "exit_code": ["0", None, True],
    "created_at": [None, 20261130],
    "name": [None, 3],
}


@pytest.mark.parametrize("path", NONSENSE)
def test_a_line_with_nonsense_is_skipped_with_a_warning_that_names_it(path: str, tmp_path: Path) -> None:
    good = line(build_plan(model="tiny", card="cpu"))
    for value in NONSENSE[path]:
        append_line(tmp_path / "ledger.jsonl", changed(good, path, value))
    append_line(tmp_path / "ledger.jsonl", good)
    ledger = read_ledger(tmp_path)
    assert len(ledger.records) == 1
    assert len(ledger.warnings) == len(NONSENSE[path])
    assert all(path.removesuffix(".card") in warning for warning in ledger.warnings), ledger.warnings


@pytest.mark.parametrize(
    ("path", "value"),
    [("plan.model.n_head", 7), ("plan.model.n_kv_head", 3), ("plan.hw.card", {}), ("plan.trainer.learning_rate", "x")],
)
def test_calibrate_passes_over_a_plan_that_the_sums_cannot_take(path: str, value: Any, make_plan: MakePlan) -> None:
    plan = cpu_plan(make_plan)
    good = line(plan)
    assert calibrate(plan, [changed(good, path, value), good], None).n_runs in (1, 2)  # never fatal


def test_a_line_of_a_newer_preflight_is_told_as_such() -> None:
    newer = line(build_plan()) | {"schema_version": LEDGER_VERSION + 1}
    assert sound_line(newer) == (
        f"schema_version {LEDGER_VERSION + 1} is of a newer preflight; this one reads up to {LEDGER_VERSION}"
    )


@pytest.mark.parametrize("version", [True, "1", 0, -1, None, 1.0])
def test_a_version_that_never_was_is_none_of_ours(version: Any) -> None:
    assert sound_line(line(build_plan()) | {"schema_version": version}) == "not a record of ours"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
GOOD = line(build_plan(model="tiny", card="cpu"))
PATHS = [
    *(f"plan.model.{name}" for name in GOOD["plan"]["model"]),
    *(f"plan.trainer.{name}" for name in GOOD["plan"]["trainer"]),
    *(f"plan.hw.{name}" for name in GOOD["plan"]["hw"]),
    *(f"actual.{name}" for name in GOOD["actual"]),
    *GOOD,
]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PATHS), JSON)
def test_whatever_a_line_holds_the_bill_is_made(path: str, value: Any) -> None:
    found = sound_line(changed(GOOD, path, value))
    if isinstance(found, dict):
        calibrate(build_plan(model="tiny", card="cpu"), [found, found], None)


@pytest.mark.parametrize("path", ["plan.trainer.eval_interval", "plan.hw.n_nodes", "plan.tracking.backend"])
def test_line_that_a_hand_has_broken_costs_no_bill(make_plan: MakePlan, path: str) -> None:
    plan = cpu_plan(make_plan)
    calibrate(plan, [changed(line(plan), path, -1)], None)  # whatever it teaches, it raises nothing
    broken = line(plan)
    del broken["plan"][path.split(".")[1]][path.split(".")[2]]
    calibrate(plan, [broken], None)
