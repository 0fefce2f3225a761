"""`python launch.py` trains for real, records, and learns for the next bill."""

import json
from collections.abc import Callable

from tests.e2e.conftest import ROOT, Desk

Overrides = Callable[..., tuple[str, ...]]


def losses(desk: Desk) -> list[float]:
    lines = (desk.run_dirs()[-1] / "metrics.jsonl").read_text().splitlines()
    return [row["train/loss"] for row in map(json.loads, lines) if "train/loss" in row]


def test_run_leaves_everything_that_the_design_names(desk: Desk, small: Overrides) -> None:
    done = desk.launch(*small("tracking=wandb", "tracking.notes=baseline"))
    assert done.code == 0, done.err
    (run_dir,) = desk.run_dirs()
    assert {"plan.json", "report.txt", "metrics.jsonl", "actual.json", "checkpoints", "wandb"} <= {
        path.name for path in run_dir.iterdir()
    }
    assert next(run_dir.glob("wandb/offline-run-*/*.wandb")).stat().st_size > 0
    (line,) = desk.ledger()
    assert line["exit_code"] == 0
    assert line["actual"]["actual/n_steps_done"] == 20
    for word in ("estimated", "actual", "ratio", "peak memory", "step time", "wall time", "cost", "energy"):
        assert word in done.out, word
    assert "tok/s" in done.out
    assert "MFU" in done.out


def test_loss_falls_from_ln_256(desk: Desk, small: Overrides) -> None:
    done = desk.launch(*small("trainer.learning_rate=1e-2", "trainer.log_interval=1", n_steps=60))
    assert done.code == 0, done.err
    curve = losses(desk)
    assert abs(curve[0] - 5.545) < 0.15  # ln 256
    assert curve[-1] < 4.0


def test_next_bill_on_this_machine_uses_the_run(desk: Desk, small: Overrides) -> None:
    before = desk.launch(*small("dry_run=true", "report=json")).document
    assert desk.launch(*small()).code == 0
    after = desk.launch(*small("dry_run=true", "report=json")).document
    assert before["calibration"]["n_runs"] == 0
    assert after["calibration"]["n_runs"] == 1
    assert "calibrated (1 run" in after["estimate"]["step_seconds"]["source"]
    assert "1 run" in desk.launch(*small("dry_run=true")).out
    off = desk.launch(*small("dry_run=true", "report=json", "calibration=off")).document
    assert off["estimate"]["step_seconds"] == before["estimate"]["step_seconds"]


def test_json_report_of_a_run_is_one_document_with_the_actual(desk: Desk, small: Overrides) -> None:
    done = desk.launch(*small("report=json"))
    assert done.code == 0, done.err
    assert done.document["actual"]["n_steps_done"] == 20
    assert "tok/s" in done.err


def test_two_launches_at_once_share_nothing(desk: Desk, small: Overrides) -> None:
    processes = [desk.start(*desk.arguments(*small())) for _ in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    for process in processes:
        process.communicate()
    assert len(desk.run_dirs()) == 2
    assert len(desk.ledger()) == 2


def test_sample_speaks_from_the_checkpoint(desk: Desk, small: Overrides) -> None:
    assert desk.launch(*small()).code == 0
    done = desk.run(str(ROOT / "scripts" / "sample.py"), str(desk.run_dirs()[0]), "--tokens", "20", "--samples", "1")
    assert done.code == 0, done.err
    assert done.out
