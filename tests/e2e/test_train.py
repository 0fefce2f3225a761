"""`python launch.py` trains for real, records, and learns for the next bill."""

from collections.abc import Callable

from tests.e2e.conftest import ROOT, Desk, Finished
from tests.e2e.test_ranks import curve

Overrides = Callable[..., tuple[str, ...]]


def test_run_leaves_everything_that_the_design_names(finished: Finished) -> None:
    run_dir, done = finished.run_dir, finished.done
    assert {"plan.json", "report.txt", "metrics.jsonl", "actual.json", "checkpoints", "wandb"} <= {
        path.name for path in run_dir.iterdir()
    }
    assert next(run_dir.glob("wandb/offline-run-*/*.wandb")).stat().st_size > 0
    (line,) = finished.desk.ledger()
    assert line["exit_code"] == 0
    assert line["actual"]["actual/n_steps_done"] == 20
    for word in ("estimated", "actual", "ratio", "peak memory", "step time", "wall time", "cost", "energy"):
        assert word in done.out, word
    assert "tok/s" in done.out
    assert "MFU" in done.out


def test_loss_falls_from_ln_256_and_the_json_report_is_one_document_with_the_actual(
    desk: Desk, small: Overrides
) -> None:
    done = desk.launch(*small("trainer.learning_rate=1e-2", "trainer.log_interval=1", "report=json", n_steps=60))
    assert done.code == 0, done.err
    losses = curve(desk.run_dirs()[0])
    assert abs(losses[0] - 5.545) < 0.15  # ln 256
    assert losses[-1] < 4.0
    assert done.document["actual"]["n_steps_done"] == 60
    assert "tok/s" in done.err


def test_next_bill_on_this_machine_uses_the_run(desk: Desk, finished: Finished, small: Overrides) -> None:
    before = desk.launch(*small("dry_run=true", "report=json")).document
    there = finished.desk
    after = there.launch(*small("dry_run=true", "report=json")).document
    assert before["calibration"]["n_runs"] == 0
    assert after["calibration"]["n_runs"] == 1
    assert "calibrated (1 run" in after["estimate"]["step_seconds"]["source"]
    assert "1 run" in there.launch(*small("dry_run=true")).out
    off = there.launch(*small("dry_run=true", "report=json", "calibration=off")).document
    assert off["estimate"]["step_seconds"] == before["estimate"]["step_seconds"]


def test_two_launches_at_once_share_nothing(desk: Desk, small: Overrides) -> None:
    processes = [desk.start(*desk.arguments(*small())) for _ in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    for process in processes:
        process.communicate()
    assert len(desk.run_dirs()) == 2
    assert len(desk.ledger()) == 2


def test_sample_speaks_from_the_checkpoint(finished: Finished) -> None:
    words = (str(ROOT / "scripts" / "sample.py"), str(finished.run_dir), "--tokens", "20", "--samples", "1")
    done = finished.desk.run(*words)
    assert done.code == 0, done.err
    assert done.out
