"""The bill of a machine that is not here: quick, complete, and without a trace on the disk."""

import pytest

from launch import bill
from preflight.errors import ConfigError
from tests.e2e.conftest import Desk, Finished


def test_dry_run_writes_nothing(desk: Desk) -> None:
    done = desk.launch("model=gpt2_124m", "hw=4x4090", "dry_run=true")
    assert done.code == 0, done.err
    assert list(desk.folder.iterdir()) == []


def test_default_bill_is_one_screen(desk: Desk) -> None:
    lines = desk.launch("model=gpt2_124m", "hw=4x4090", "dry_run=true", "budget.max_hours=null").out.splitlines()
    assert len(lines) <= 20
    assert max(len(line) for line in lines if str(desk.folder) not in line) <= 80  # a path is not cut


def test_same_command_without_dry_run_is_the_wrong_machine(desk: Desk) -> None:
    done = desk.launch("model=gpt2_124m", "hw=4x4090", "data=stdlib", "model.vocab_size=50304", "budget.max_hours=1000")
    assert done.code == 4
    first = done.out.splitlines()[0]
    assert "4" in first
    assert "4090" in first
    assert "hw=auto" in done.out
    assert "dry_run=true" in done.out
    assert desk.ledger()[0]["exit_code"] == 4


def test_over_budget_is_refused_with_three_and_recorded(desk: Desk) -> None:
    done = desk.launch("model=tiny", "trainer.total_tokens=20_000_000_000", "data=stdlib")
    assert done.code == 3
    assert "budget.max_hours=" in done.out
    assert "trainer.total_tokens=" in done.out
    assert desk.ledger()[0]["decision"] == "refuse"
    assert not desk.run_dirs()


def test_batch_is_lowered_when_it_does_not_fit(desk: Desk) -> None:
    document = desk.launch(
        "model=gpt2_124m", "hw=1x4090", "trainer.micro_batch_size=96", "trainer.compile=false", "dry_run=true",
        "report=json", "budget.max_hours=1000",
    ).document  # fmt: skip
    (change,) = document["verdict"]["changes"]
    assert (change["rung"], change["field"], change["old"]) == ("batch", "trainer.micro_batch_size", "96")
    assert document["verdict"]["decision"] == "go_lowered"
    trainer = document["plan"]["trainer"]
    assert trainer["micro_batch_size"] * trainer["grad_accum_steps"] * 1024 == trainer["tokens_per_step"] == 491_520
    assert document["asked"]["memory"]["device_bytes"]["mid"] > document["estimate"]["memory"]["device_bytes"]["mid"]


def test_policy_refuse_says_no_to_the_same_plan(desk: Desk) -> None:
    done = desk.launch("model=gpt2_124m", "hw=1x4090", "trainer.micro_batch_size=96", "trainer.compile=false",
                       "budget.max_hours=1000", "lowering.policy=refuse", "dry_run=true")  # fmt: skip
    assert done.code == 3
    assert "trainer.micro_batch_size=" in done.out


def test_problems_are_told_all_at_once(desk: Desk) -> None:
    done = desk.launch("modle=tiny", "trainer.precision=fp8", "trainer.n_stpes=3", "hw=4x4091", "budget.max_hours=soon")
    assert done.code == 2
    for word in ("modle", "model", "fp8", "bf16", "n_stpes", "trainer.n_steps", "4091", "4090", "soon"):
        assert word in done.err, word
    assert "Traceback" not in done.err
    assert list(desk.folder.iterdir()) == []


def test_problems_in_json_are_one_document(desk: Desk) -> None:
    done = desk.launch("modle=tiny", "trainer.micro_batch_size=7", "report=json")
    assert done.code == 2
    assert done.document["exit_code"] == 2
    assert done.document["problems"]


def test_plan_file_prints_the_identical_bill(finished: Finished) -> None:
    plan = f"plan={finished.run_dir / 'plan.json'}"
    first, second = (finished.desk.frozen(plan, "dry_run=true") for _ in range(2))
    assert first.code == 0, first.err
    assert first.out == second.out
    head = (finished.run_dir / "report.txt").read_text()
    assert head.startswith(first.out.splitlines()[0])


def test_grid_finishes_its_rows_and_returns_the_worst(desk: Desk) -> None:
    done = desk.launch("-m", "model=gpt2_124m,gpt2_350m", "hw=1x4090,8xh100", "dry_run=true")
    assert done.code == 3  # 10B tokens on one 4090 are more than 24 hours
    assert len(done.out.splitlines()) >= 5
    assert list(desk.folder.iterdir()) == []


def test_bill_in_a_notebook_returns_values() -> None:
    answer = bill("model=gpt2_124m", "hw=4x4090")
    assert answer.estimate.n_params == 124_373_760 + 0  # V=50304: 38,633,472 + 786,432 + 84,953,856
    with pytest.raises(ConfigError, match="modle"):
        bill("modle=tiny")


def test_help_names_the_options_people_use(desk: Desk) -> None:
    done = desk.launch("--help")
    assert done.code == 0
    for word in ("model=", "hw=", "dry_run=true", "trainer.micro_batch_size", "budget.max_hours", "resume"):
        assert word in done.out, word
