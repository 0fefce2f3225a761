"""plan.json holds the whole plan, and nothing else is taken for one."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from preflight.actual import Actual
from preflight.errors import ConfigError
from preflight.plan import Calibration, Factor, RunPlan
from preflight.planfile import read_json, write_json
from preflight.rundir import UNMEASURED, replay


def test_plan_survives_the_round_trip(make_plan: Callable[..., RunPlan], tmp_path: Path) -> None:
    factor = Factor(value=1.07, low=0.9, high=1.2, n_runs=4, scope="same machine")
    plan = make_plan(
        calibration=Calibration(n_runs=4, factors={"step_seconds": factor}, ledger_sha256="ab"),
        provenance={"trainer.micro_batch_size": "given"},
    )
    write_json({"plan": plan}, tmp_path / "plan.json")
    assert read_json(RunPlan, tmp_path / "plan.json", "plan") == plan


def test_exclusive_write_fails_when_the_file_is_there(make_plan: Callable[..., RunPlan], tmp_path: Path) -> None:
    write_json({"plan": make_plan()}, tmp_path / "plan.json", exclusive=True)
    with pytest.raises(FileExistsError):
        write_json({"plan": make_plan()}, tmp_path / "plan.json", exclusive=True)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema_version": 99, "plan": {}}', '{"schema_version": 1}'])
def test_foreign_file_is_a_config_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"plan\.json"):
        read_json(RunPlan, path, "plan")


def test_wrong_type_inside_is_a_config_error(make_plan: Callable[..., RunPlan], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_json({"plan": make_plan()}, path)
    document = json.loads(path.read_text())
    document["plan"]["trainer"]["n_steps"] = "many"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="many"):
        read_json(RunPlan, path, "plan")


def test_a_file_from_before_a_field_was_added_means_its_default(tmp_path: Path) -> None:
    path = tmp_path / "actual.json"
    numbers = dict.fromkeys(UNMEASURED)
    old = {**numbers, "wall_terms_seconds": {}, "n_steps_done": 7, "exit_code": 0, "exit_reason": "done",
           "failed_rank": None, "device": "cpu", "torch": "2.9"}  # fmt: skip
    write_json({"actual": old}, path)
    assert read_json(Actual, path, "actual").first_step == 0
    del old["exit_code"]  # without a default: not one of ours
    write_json({"actual": old}, path)
    with pytest.raises(ConfigError, match="exit_code"):
        read_json(Actual, path, "actual")


def test_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_json(RunPlan, tmp_path / "nothing.json", "plan")


@pytest.mark.parametrize(
    ("path", "value", "part"),
    [
        ("provenance", [], "expected names with values"),
        ("calibration.factors", 3, "expected names with values"),
        ("trainer.learning_rate", 10**400, "int too large"),
    ],
)
def test_plan_edited_by_hand_is_a_config_error(
    make_plan: Callable[..., RunPlan], tmp_path: Path, path: str, value: object, part: str
) -> None:
    write_json({"asked_plan": make_plan(), "findings": ()}, tmp_path / "plan.json")
    document = json.loads((tmp_path / "plan.json").read_text())
    *above, last = path.split(".")
    place = document["asked_plan"]
    for name in above:
        place = place[name]
    place[last] = value
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=part):
        replay(tmp_path / "plan.json")


def test_plan_whose_sums_break_says_so(make_plan: Callable[..., RunPlan], tmp_path: Path) -> None:
    factor = Factor(value=1e21, low=0.9, high=1.2, n_runs=4, scope="same machine")
    plan = make_plan(calibration=Calibration(n_runs=4, factors={"step_seconds": factor}, ledger_sha256="ab"))
    write_json({"asked_plan": plan, "findings": ()}, tmp_path / "plan.json")
    with pytest.raises(ConfigError, match="not a plan that can be worked out: a band must be ordered"):
        replay(tmp_path / "plan.json")
