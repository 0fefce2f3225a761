"""When is a checkpoint written, what is in it, and does a run go on from it as if nothing had happened?"""

# ruff: noqa: TID253 - torch is what is tested here
from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.choices import Optimizer
from preflight.errors import ConfigError, TrainingFailed
from preflight.plan import RunPlan
from tests.trainers.stopping_at import StopAt
from trainers import checkpoint, pretrain
from trainers import state as module
from trainers.job import Job
from trainers.pretrain import train
from trainers.state import copied, refuse_other_states

Plans = Callable[..., RunPlan]
Jobs = Callable[..., Job]


def lines(job: Job, name: str) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row[name]) for row in rows if name in row]


def test_stop_at_an_evaluation_leaves_it_to_the_resumed_run(small_plan: Plans, make_job: Jobs):
    plan = small_plan(n_steps=8)  # evaluated after steps 4 and 8
    undisturbed, stopped = make_job(plan, "undisturbed"), make_job(plan, "stopped", stop=StopAt(4))
    train(undisturbed)
    assert train(stopped).val_loss is None
    saved = checkpoint.load(checkpoint.path_of(stopped.run_dir, 4))
    assert (saved["val_loss"], saved["val_step"]) == (None, None)  # that of other weights would be a lie
    train(replace(stopped, stop=StopAt(99), resume=True))
    for name in ("train/loss", "val/loss"):
        assert lines(stopped, name) == lines(undisturbed, name)
    train(replace(stopped, stop=StopAt(99), resume=True))  # nothing is left to do, or to evaluate again
    assert lines(stopped, "val/loss") == lines(undisturbed, "val/loss")


def test_checkpoint_knows_after_which_step_its_held_out_loss_was_measured(small_plan: Plans, make_job: Jobs):
    trainer = {"eval_interval": 4, "checkpoint_interval": 3, "keep_checkpoints": 9}
    job = make_job(small_plan(n_steps=8, trainer=trainer))
    train(job)
    steps = [checkpoint.load(checkpoint.path_of(job.run_dir, step))["val_step"] for step in (3, 6, 8)]
    assert steps == [None, 4, 8]


def test_run_keeps_its_best_checkpoint(small_plan: Plans, make_job: Jobs, monkeypatch: pytest.MonkeyPatch):
    losses = iter([3.0, 1.0, 2.0, 2.5])
    monkeypatch.setattr(pretrain, "evaluate", lambda *_: next(losses))
    trainer = {"eval_interval": 2, "checkpoint_interval": 2, "keep_checkpoints": 1, "keep_best": True}
    job = make_job(small_plan(n_steps=8, trainer=trainer))
    train(job)
    assert [checkpoint.step_of(path) for path in checkpoint.all_in(job.run_dir)] == [4, 8]
    assert checkpoint.best_step(job.run_dir) == 4


class SlowDisk:
    """Writes the first checkpoint when it is let, and notes how far the run was meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on, self.real, self.threads = threading.Event(), checkpoint.save, list[str]()
        monkeypatch.setattr(module.checkpoint, "save", self.save)

    def save(self, run_dir: Path, step: int, content: Mapping[str, Any], **settings: Any) -> Path:
        self.threads.append(threading.current_thread().name)
        assert step > 4 or self.go_on.wait(20)
        return self.real(run_dir, step, content, **settings)


def test_saving_beside_delays_no_step_and_writes_the_state_of_its_own_step(
    small_plan: Plans, make_job: Jobs, monkeypatch: pytest.MonkeyPatch
):
    plan = small_plan(n_steps=8, trainer={"checkpoint_interval": 4, "save_beside": True})
    in_place = make_job(replace(plan, trainer=replace(plan.trainer, save_beside=False)), "in-place")
    train(in_place)
    disk = SlowDisk(monkeypatch)
    job = make_job(plan, "beside")
    look = module.Saver.look

    def look_and_let_the_disk_go_on(saver: module.Saver) -> None:
        if saver.meters.n_steps_done == 6:  # two steps are done while step 4 is being written
            assert not checkpoint.path_of(job.run_dir, 4).exists()
            disk.go_on.set()
        look(saver)

    monkeypatch.setattr(module.Saver, "look", look_and_let_the_disk_go_on)
    train(job)
    assert [name.rpartition("_")[0] for name in disk.threads] == ["checkpoint", ""]  # the last one is waited for
    for step in (4, 8):
        one, other = (checkpoint.load(checkpoint.path_of(a.run_dir, step)) for a in (job, in_place))
        assert all(torch.equal(one["model"][name], weight) for name, weight in other["model"].items())
        assert str(one["optimizer"]) == str(other["optimizer"])


def test_saving_beside_tells_what_went_wrong_at_the_next_step(
    small_plan: Plans, make_job: Jobs, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: Any, **__: Any) -> None:
        raise TrainingFailed("checkpoint of step 2 was not written")

    monkeypatch.setattr(module.checkpoint, "save", full)
    job = make_job(small_plan(n_steps=200, trainer={"checkpoint_interval": 2, "save_beside": True, "eval_interval": 0}))
    with pytest.raises(TrainingFailed, match="step 2 was not written"):
        train(job)
    document = json.loads((job.run_dir / "actual.json").read_text())["actual"]
    assert document["n_steps_done"] in (2, 3, 4)


def test_saving_waits_for_the_disk_where_a_copy_has_no_room(
    small_plan: Plans, make_job: Jobs, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "has_room_for", lambda _: False)
    disk = SlowDisk(monkeypatch)
    disk.go_on.set()
    train(make_job(small_plan(n_steps=8, trainer={"save_beside": True})))
    assert disk.threads == [threading.current_thread().name] * 2


def test_copied_shares_no_memory():
    weight = torch.ones(3)
    state = {"w": weight, "list": [weight, 1], "step": 7}
    copy = copied(state)
    weight.zero_()
    assert copy["w"].tolist() == copy["list"][0].tolist() == [1, 1, 1]
    assert (copy["list"][1], copy["step"]) == (1, 7)


def test_resume_refuses_a_plan_whose_optimizer_a_hand_has_changed(small_plan: Plans, make_job: Jobs):
    job = make_job(small_plan(n_steps=8), stop=StopAt(2))
    train(job)
    there = checkpoint.path_of(job.run_dir, 2)
    others = replace(job.plan.trainer, optimizer=Optimizer.sgd, weight_decay=0.3, micro_batch_size=1, compile=True)
    with pytest.raises(ConfigError) as refused:
        refuse_other_states(replace(job, plan=replace(job.plan, trainer=others)), checkpoint.load(there), 2)
    assert [(one.path, one.value) for one in refused.value.problems] == [
        ("trainer.optimizer", "sgd"),
        ("trainer.weight_decay", "0.3"),
    ]
    assert f"{there} holds the states of trainer.optimizer=adamw" in str(refused.value)
    sgd = replace(job.plan.trainer, optimizer=Optimizer.sgd)
    with pytest.raises(ConfigError, match=r"trainer\.optimizer=sgd"):  # before any step
        train(replace(job, plan=replace(job.plan, trainer=sgd), resume=True))
    assert checkpoint.all_in(job.run_dir) == [there]
