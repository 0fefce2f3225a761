"""fp16 steps that the scaler skips are counted; too many in a row end the run with sound weights."""

# ruff: noqa: TID253 - torch is what is tested here
from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from preflight.errors import TrainingFailed
from preflight.plan import Precision, RunPlan
from trainers import checkpoint, pretrain
from trainers.job import Job
from trainers.nonfinite import SkippedSteps
from trainers.pretrain import train

Plans = Callable[..., RunPlan]
Jobs = Callable[..., Job]


def scale_from(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    monkeypatch.setattr(
        pretrain, "make_scaler", lambda *_: torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)
    )


def test_fp16_skips_and_counts_steps_whose_gradients_are_not_finite(
    small_plan: Plans, make_job: Jobs, monkeypatch: pytest.MonkeyPatch
):
    scale_from(monkeypatch, 2.0**24)  # gradients of some 1e-2 times this are beyond fp16's 65,504
    job = make_job(
        small_plan(n_steps=16, precision=Precision.fp16, trainer={"checkpoint_interval": 1, "keep_checkpoints": 99})
    )
    actual = train(job)
    weights = [checkpoint.load(checkpoint.path_of(job.run_dir, step))["model"] for step in range(1, 17)]
    stood_still = [
        all(torch.equal(before[name], after[name]) for name in before) for before, after in pairwise(weights)
    ]
    assert actual.n_skipped_steps >= 3
    assert sum(stood_still) == actual.n_skipped_steps - 1  # the first step has no weights before it
    assert stood_still[0]
    assert not stood_still[-1]  # the scale has come down
    assert all(bool(weight.isfinite().all()) for weight in weights[-1].values())
    rows = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "train/loss" in row] == list(range(1, 17))


def test_fp16_gives_up_after_so_many_skipped_steps_in_a_row(
    small_plan: Plans, make_job: Jobs, monkeypatch: pytest.MonkeyPatch
):
    scale_from(monkeypatch, 2.0**60)
    job = make_job(small_plan(n_steps=50, precision=Precision.fp16, trainer={"max_nonfinite_steps": 3}))
    with pytest.raises(TrainingFailed, match=r"3 steps in a row, the last one step 3, (.|\n)*trainer.learning_rate="):
        train(job)


def test_a_loss_that_is_not_finite_ends_the_run_where_nothing_skips_the_step(small_plan: Plans):
    trainer = small_plan().trainer
    without, with_scaler = (torch.amp.GradScaler("cpu", enabled=enabled) for enabled in (False, True))
    SkippedSteps(trainer, with_scaler).check([1.0, math.inf], 7)
    SkippedSteps(trainer, without).check([1.0, 2.0], 7)
    with pytest.raises(TrainingFailed, match="the loss of step 6 is nan"):
        SkippedSteps(trainer, without).check([math.nan, 2.0], 7)
