"""Past W&B runs become lines of the ledger: from a server, from offline files, from exports; once only."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from preflight.calibration.calibrate import calibrate
from preflight.plan import RunPlan
from preflight.planfile import to_jsonable
from preflight.record import append_line, read_ledger
from scripts import import_wandb
from scripts.past_runs import nested
from tests.conftest import build_plan
from tests.trainers.wandb_site import (  # noqa: F401
    Handler,
    Server,
    fixture_plan,
    fixture_run_dir,
    fixture_server,
    track,
)

MakePlan = Callable[..., RunPlan]
PLAN = build_plan()
ACTUAL = {"actual/step_seconds": 0.5, "actual/n_steps_done": 1000, "actual/first_step": 0,
          "actual/peak_reserved_bytes": 8_000_000_000, "exit_reason": "done", "_step": 1000}  # fmt: skip


def own(plan: RunPlan = PLAN, **changes: Any) -> dict[str, Any]:
    """As the API or a JSON export has a run of ours."""
    return {"id": "abc123", "name": "20261101-gpt2", "state": "finished", "createdAt": "2026-11-01T10:00:00",
            "config": {**to_jsonable(plan), "estimate/step_seconds": 0.4}, "summary": ACTUAL, **changes}  # fmt: skip


NANOGPT = {
    "id": "nano1", "name": "gpt2-124M", "state": "finished", "createdAt": "2026-10-01T10:00:00",
    "gpu": "NVIDIA A100-SXM4-80GB", "gpu_count": 8,
    "config": {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "batch_size": 12, "dropout": 0.0,
               "gradient_accumulation_steps": 40, "max_iters": 600000, "dtype": "bfloat16", "compile": True},
    "summary": {"iter": 2000, "mfu": 40.0, "val/loss": 3.2},
}  # fmt: skip
TRAINER = {
    "id": "hf1", "name": "llama", "state": "finished", "gpu": "NVIDIA GeForce RTX 4090", "gpu_count": 1,
    "torch": "2.13.0",
    "config": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_length": 512, "bf16": True,
               "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 12,
               "intermediate_size": 2048, "vocab_size": 32000, "hidden_act": "silu"},
    "summary": {"train/global_step": 400, "train/train_steps_per_second": 2.0},
}  # fmt: skip


def run(place: Path | str, tmp_path: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    code = import_wandb.main([str(place), "--runs-dir", str(tmp_path / "runs"), *options])
    return code, list(read_ledger(tmp_path / "runs").records)


def exported(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "export.json"
    path.write_text(json.dumps(rows))
    return path


def test_an_export_of_our_own_runs_calibrates_the_next_bill_and_is_imported_once(tmp_path: Path) -> None:
    path = exported(tmp_path, own())
    for _ in range(2):
        code, lines = run(path, tmp_path)
        assert code == 0
        assert len(lines) == 1
    (line,) = lines
    assert (line["run_id"], line["estimate"]) == ("20261101-gpt2", {"estimate/step_seconds": 0.4})
    assert line["actual"]["actual/step_seconds"] == 0.5
    assert "exit_reason" not in line["actual"]
    factor = calibrate(PLAN, lines, None).factors["step_seconds"]
    assert factor.scope == "same plan"


def test_a_run_that_the_ledger_has_already_is_left_alone(tmp_path: Path) -> None:
    there = {"schema_version": 2, "run_id": "20261101-gpt2", "name": "a", "created_at": "", "decision": "go",
             "exit_code": 0, "estimate": {}, "actual": None, "plan": to_jsonable(PLAN)}  # fmt: skip
    append_line(tmp_path / "runs" / "ledger.jsonl", there)
    _, lines = run(exported(tmp_path, own()), tmp_path)
    assert [line["actual"] for line in lines] == [None]


def test_a_csv_with_dotted_names_is_read(tmp_path: Path) -> None:
    """As W&B's table exports it: nested config by dots, empty cells for what is unknown."""

    def flat(value: Any, above: str = "") -> Iterator[tuple[str, str]]:
        for name, item in value.items():
            if isinstance(item, dict) and item:
                yield from flat(item, f"{above}{name}.")
            elif item is not None:
                yield f"{above}{name}", item if isinstance(item, str) else json.dumps(item)

    row = {"Name": "from-csv", "ID": "c1", "State": "finished", "Created": "2026-11-01",
           **dict(flat(own()["config"])), **{name: str(value) for name, value in ACTUAL.items()}}  # fmt: skip
    path = tmp_path / "export.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(row))
        writer.writeheader()
        writer.writerow(row)
    code, (line,) = run(path, tmp_path)
    assert (code, line["run_id"]) == (0, "from-csv")
    assert line["plan"]["model"]["n_layer"] == 12
    assert calibrate(PLAN, [line], None).n_runs == 1


def test_nested_reads_names_as_wandb_writes_them() -> None:
    assert nested({"model.n_layer": 2, "estimate/a.b": 1, "x": 3}) == {
        "model": {"n_layer": 2},
        "estimate/a.b": 1,
        "x": 3,
    }


def test_offline_files_are_read_by_wandbs_own_reader(
    plan: RunPlan, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bill = {"estimate/step_seconds": 2.0}
    tracker = track(plan, run_dir, config=to_jsonable(plan), estimate_flat=bill)
    tracker.finish(ACTUAL, 0)
    code, (line,) = run(run_dir, tmp_path)
    assert (code, line["run_id"], line["exit_code"]) == (0, run_dir.name, 0)
    assert line["plan"]["trainer"] == to_jsonable(plan)["trainer"]
    assert line["estimate"]["estimate/step_seconds"] == 2.0
    assert line["actual"]["actual/n_steps_done"] == 1000
    assert run(run_dir.parent, tmp_path)[1] == [line]


def test_nanogpts_runs_tell_the_pace_by_their_mfu(tmp_path: Path) -> None:
    """6 N + 12 L H Q T flops a token (nanoGPT's model.py), N without positions; 40 % of 312 TFLOP/s on each of 8."""
    code, (line,) = run(exported(tmp_path, NANOGPT), tmp_path, "--torch", "2.13.0")
    assert code == 0
    trainer, hw = line["plan"]["trainer"], line["plan"]["hw"]
    assert (trainer["tokens_per_step"], trainer["grad_accum_steps"]) == (40 * 12 * 1024, 5)
    assert (hw["card"]["name"], hw["n_gpus_per_node"], trainer["precision"]) == ("a100_80gb", 8, "bf16")
    n_params = 50304 * 768 + 12 * (12 * 768**2 + 2 * 768) + 768
    flops = (6 * n_params + 12 * 12 * 768 * 1024) * 12 * 1024 * 5
    assert line["actual"]["actual/step_seconds"] == pytest.approx(flops / (0.4 * 312e12), rel=0.01)
    assert line["estimate"] == {}  # no bill was made before it
    plan = build_plan(card="a100_80gb", compile=True)
    assert "step_seconds" in calibrate(plan, [line], None).factors


def test_the_trainers_runs_tell_their_steps_per_second(tmp_path: Path) -> None:
    _, (line,) = run(exported(tmp_path, TRAINER), tmp_path)
    assert line["actual"]["actual/step_seconds"] == 0.5
    model, trainer = line["plan"]["model"], line["plan"]["trainer"]
    assert (model["family"], model["d_ff"], model["norm"]) == ("llama", 2048, "rmsnorm")
    assert (trainer["tokens_per_step"], trainer["grad_accum_steps"]) == (4 * 2 * 512, 2)


LEFT_OUT = {
    "still going": (own(state="running"), "has not ended"),
    "not measured": (own(summary={}), "no actual/n_steps_done"),
    "no torch": (NANOGPT, "give --torch"),
    "no machine": (TRAINER | {"gpu": ""}, "give --card"),
    "an unknown card": (TRAINER | {"gpu": "Abacus 3000"}, "not in the catalog"),
    "another trainer": (own(config={"lr": 0.1}) | {"torch": "2.9"}, "neither preflight's"),
    "nonsense": (own(config=to_jsonable(PLAN) | {"model": {"n_layer": "many"}}), "plan.model"),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_cannot_be_understood_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    row, words = LEFT_OUT[case]
    code, lines = run(exported(tmp_path, row), tmp_path)
    assert (code, lines) == (2, [])
    assert words in capsys.readouterr().err


def test_what_is_not_there_is_said_without_asking_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("nosuch", str(tmp_path / "nosuch")):
        assert import_wandb.main([place, "--runs-dir", str(tmp_path)]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"{place} is no folder or file here, and no project that can be read: ")
        assert "ENTITY/PROJECT" in told


def test_a_file_that_is_no_ledger_is_not_written_to(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("dear diary\n")
    assert import_wandb.main([str(exported(tmp_path, own())), "--runs-dir", str(other)]) == 2
    assert other.read_text() == "dear diary\n"


@pytest.fixture(name="history")
def fixture_history(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server with one project of two runs, in two pages of one."""
    before = Handler.answer

    def node(i: int) -> dict[str, Any]:
        run = own(name=f"run-{i}", id=f"id{i}")
        config = {name: {"value": value} for name, value in run["config"].items()}
        return {"id": f"x{i}", "tags": [], "name": run["id"], "displayName": run["name"], "sweepName": None,
                "state": "finished", "config": json.dumps(config), "group": "", "jobType": "train", "commit": None,
                "readOnly": False, "createdAt": "2026-11-01T00:00:00", "heartbeatAt": "2026-11-01T00:00:00",
                "description": "", "notes": "", "systemMetrics": "{}", "summaryMetrics": json.dumps(run["summary"]),
                "historyLineCount": 3, "user": {"name": "me", "username": "me"}, "historyKeys": None,
                "projectId": 1}  # fmt: skip

    def answer(self: Handler, request: dict[str, Any]) -> dict[str, Any]:
        if "GetDefaultEntity" in request["query"]:
            return {"data": {"viewer": {"id": "u", "entity": "me"}}}
        if "query Runs(" not in request["query"]:
            return before(self, request)
        page = 2 if request["variables"]["cursor"] else 1
        edges = [{"node": node(page), "cursor": f"c{page}"}]
        runs = {"edges": edges, "pageInfo": {"endCursor": f"c{page}", "hasNextPage": page == 1}}
        return {"data": {"project": {"internalId": "1", "runCount": 2, "readOnly": False, "runs": runs}}}

    monkeypatch.setattr(Handler, "answer", answer)
    return server


def test_a_project_on_the_server_is_imported_page_by_page(history: Server, tmp_path: Path) -> None:
    for _ in range(2):
        code, lines = run("me/test", tmp_path)
        assert code == 0
        assert [line["run_id"] for line in lines] == ["run-1", "run-2"]
    assert calibrate(PLAN, lines, None).n_runs == 2
