"""Nobody reads, or the disk is full: the training goes on, and is told once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from preflight.actual import flat_actual
from preflight.bill import make_bill
from preflight.flat import flat_estimate
from preflight.plan import RunPlan
from trainers import checkpoint
from trainers.job import Job
from trainers.pretrain import train
from trainers.progress import forget_metrics_after

Plans = Callable[..., RunPlan]
Jobs = Callable[..., Job]


def test_train_survives_a_reader_that_has_gone(small_plan: Plans, make_job: Jobs, capsys: pytest.CaptureFixture[str]):
    reading, writing = os.pipe()
    os.close(reading)
    pipe = os.fdopen(writing, "w")
    actual = train(make_job(small_plan(), progress=pipe))
    with pytest.raises(BrokenPipeError):
        pipe.close()
    assert (actual.n_steps_done, actual.exit_code) == (8, 0)
    assert capsys.readouterr().err.count("the output cannot be written") == 1


def test_train_survives_lost_metrics(small_plan: Plans, make_job: Jobs, capsys: pytest.CaptureFixture[str]):
    job = make_job(small_plan())
    (job.run_dir / "metrics.jsonl").mkdir()
    actual = train(job)
    assert (actual.n_steps_done, actual.exit_code) == (8, 0)
    assert capsys.readouterr().err.count("metrics.jsonl cannot be written") == 1
    assert checkpoint.find_latest(job.run_dir)[0] is not None


def test_train_saves_before_it_says_a_word_when_asked_to_stop(small_plan: Plans, make_job: Jobs):
    class Listener:
        """Sees which checkpoints were there at each line."""

        def __init__(self) -> None:
            self.seen: list[tuple[str, int]] = []

        def write(self, text: str) -> int:
            self.seen.append((text, len(list(job.run_dir.glob("checkpoints/*.pt")))))
            return len(text)

        def flush(self) -> None:
            """Nothing is kept back."""

    class Asked:
        requested = "SIGHUP"

    listener = Listener()
    job = make_job(small_plan(), progress=listener, stop=Asked())
    assert train(job).exit_code == 143
    assert next(n for text, n in listener.seen if text.startswith("step 1/8")) == 1


def test_the_history_has_the_names_of_the_summary_and_of_the_bill(small_plan: Plans, make_job: Jobs):
    job = make_job(small_plan(n_steps=20), watts=100.0)
    summary = flat_actual(train(job))
    names = {name for line in (job.run_dir / "metrics.jsonl").read_text().splitlines() for name in json.loads(line)}
    assert {name for name in names if name.startswith("actual/")} <= set(summary)
    billed = {name.partition("/")[2] for name in flat_estimate(make_bill(job.plan, ()).estimate)}
    forecast = {name.partition("/")[2] for name in names if name.startswith("forecast/")}
    leaves = {leaf.removesuffix("_low").removesuffix("_high") for leaf in forecast}
    assert leaves - billed == {"remaining_seconds", "end_unix_seconds"}  # before a run nobody asks
    assert names - forecast >= {"step", "train/loss", "val/loss", "learning_rate", "grad_norm", "n_tokens"}


def test_forget_metrics_skips_torn_lines(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    lines = [
        '{"step": 1}',
        '{"st',
        '{"step": 2, {"step": 2}',
        "[]}",
        '{"loss": 1}',
        "\udcff}",
        '{"step": 2}',
        '{"step": 3}',
    ]
    path.write_text("\n".join(lines), errors="surrogateescape")
    forget_metrics_after(path, 2)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]
