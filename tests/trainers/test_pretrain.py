"""The loop, run for real on one CPU thread."""

# ruff: noqa: TID253 - torch is what is tested here
from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from saved import assert_identical, last_state

from conf.choices import Attention, Float32Matmul, Optimizer
from preflight.actual import Actual
from preflight.errors import ConfigError, TrainingFailed
from preflight.plan import Precision, RunPlan
from preflight.planfile import read_json
from tests.trainers.stopping_at import StopAt
from trainers import checkpoint
from trainers.gpt import MLP
from trainers.job import Job
from trainers.pretrain import learning_rate, train

Plans = Callable[..., RunPlan]
Jobs = Callable[..., Job]


def metrics(job: Job, name: str = "train/loss") -> dict[int, float]:
    lines = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[name] for line in lines if name in line}


def test_train_learns_and_leaves_its_numbers(small_plan: Plans, make_job: Jobs):
    job = make_job(small_plan(n_steps=150, trainer={"eval_interval": 50, "learning_rate": 3e-3}))
    actual = train(job)
    losses = metrics(job)
    assert losses[1] == pytest.approx(math.log(64), abs=0.2)
    assert actual.val_loss is not None
    assert actual.val_loss < 1.5
    assert list(metrics(job, "val/loss")) == [50, 100, 150]
    assert read_json(Actual, job.run_dir / "actual.json", "actual") == actual
    assert (actual.n_steps_done, actual.exit_code, actual.exit_reason) == (150, 0, "done")


def test_train_accounts_for_every_second_once(small_plan: Plans, make_job: Jobs):
    actual = train(make_job(small_plan()))
    assert actual.wall_seconds == pytest.approx(sum(actual.wall_terms_seconds.values()))
    assert set(actual.wall_terms_seconds) == {
        "startup", "compile", "steps", "data_wait", "evaluations", "checkpoints", "data", "shutdown",
    }  # fmt: skip
    assert actual.cost_usd == pytest.approx(3.6 * actual.wall_seconds / 3600)
    assert actual.step_seconds is not None
    assert actual.mfu == pytest.approx(1e9 / actual.step_seconds / 1e12)
    assert actual.tokens_per_second == pytest.approx(64 / actual.step_seconds)
    assert actual.energy_kwh is None  # no counter, no watts: unknown
    assert actual.base_memory_bytes is not None
    assert actual.peak_device_bytes is not None
    assert actual.peak_device_bytes >= actual.base_memory_bytes > 50 * 2**20


def test_train_says_unknown_when_rate_and_price_are(small_plan: Plans, make_job: Jobs):
    job = make_job(small_plan(n_steps=1), peak_flops_per_second=None, usd_per_hour=None)
    actual = train(job)
    assert (actual.mfu, actual.cost_usd) == (None, None)
    first_line = job.progress.getvalue().splitlines()[0]  # type: ignore[attr-defined]
    assert first_line.startswith("step 1/1 | loss 4.")
    assert "MFU unknown" in first_line
    assert "money unknown" in first_line


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("kernels", [{}, {"attention": Attention.eager, "loss_chunk_tokens": 24}])
def test_train_resumes_exactly_when_stopped(small_plan: Plans, make_job: Jobs, dropout: float, kernels: dict[str, Any]):
    plan = small_plan(dropout=dropout, n_steps=10, trainer=kernels)
    undisturbed, stopped = make_job(plan, "undisturbed"), make_job(plan, "stopped", stop=StopAt(5, "SIGTERM"))
    train(undisturbed)
    assert train(stopped).n_steps_done == 5
    rest = train(replace(stopped, stop=StopAt(99, ""), resume=True))
    assert (rest.first_step, rest.n_steps_done) == (5, 10)
    assert metrics(stopped) == metrics(undisturbed)
    assert_identical(last_state(stopped), last_state(undisturbed))


def test_train_resumes_exactly_when_killed_after_a_checkpoint(small_plan: Plans, make_job: Jobs):
    plan = small_plan(n_steps=10)
    undisturbed, killed = make_job(plan, "undisturbed"), make_job(plan, "killed")
    train(undisturbed)
    train(killed)
    checkpoint.path_of(killed.run_dir, 10).write_bytes(b"torn")  # steps 9 and 10 are in metrics.jsonl already
    with (killed.run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 10, "train')
    train(replace(killed, resume=True))
    assert metrics(killed) == metrics(undisturbed)
    assert_identical(last_state(killed), last_state(undisturbed))
    assert "passed over" in killed.progress.getvalue()  # type: ignore[attr-defined]


def test_train_does_not_begin_anew_over_checkpoints_that_it_cannot_read(small_plan: Plans, make_job: Jobs):
    job = make_job(small_plan(n_steps=4))
    train(job)
    files = checkpoint.all_in(job.run_dir)
    for path in files:
        path.write_bytes(b"torn")
    with pytest.raises(
        TrainingFailed, match=r"no checkpoint can be gone on from: .*step_00000004.pt: cut short"
    ) as told:
        train(replace(job, resume=True))
    assert f"mv {job.run_dir}/checkpoints ELSEWHERE" in str(told.value)
    assert [path.read_bytes() for path in files] == [b"torn"] * len(files)
    (job.run_dir / "checkpoints").rename(job.run_dir / "elsewhere")
    assert train(replace(job, resume=True)).n_steps_done == 4


def test_train_says_that_a_checkpoints_states_are_another_optimizers(small_plan: Plans, make_job: Jobs):
    job = make_job(small_plan(n_steps=2))
    train(job)
    muon = replace(job.plan, trainer=replace(job.plan.trainer, optimizer=Optimizer.muon, n_steps=4))
    with pytest.raises(ConfigError, match=r"holds the states of trainer\.optimizer=adamw"):
        train(replace(job, plan=muon, resume=True))


def test_train_has_nothing_left_to_do_when_a_finished_run_is_resumed(small_plan: Plans, make_job: Jobs):
    job = make_job(small_plan(n_steps=3))
    first = train(job)
    again = train(replace(job, resume=True))
    assert (again.n_steps_done, again.exit_code, again.val_loss) == (3, 0, first.val_loss)
    assert again.step_seconds is None


@pytest.mark.parametrize(("name", "exit_code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGUSR1", 143), ("SIGHUP", 143)])
def test_train_finishes_the_step_and_saves_when_asked_to_stop(
    small_plan: Plans, make_job: Jobs, name: str, exit_code: int
):
    job = make_job(small_plan(), stop=StopAt(3, name))
    actual = train(job)
    assert (actual.n_steps_done, actual.exit_code, actual.exit_reason) == (3, exit_code, name)
    assert last_state(job)["step"] == 3


def test_train_stops_at_the_budget_with_a_checkpoint(small_plan: Plans, make_job: Jobs):
    job = make_job(small_plan(budget={"max_hours": 1e-9}))
    actual = train(job)
    assert (actual.n_steps_done, actual.exit_code) == (1, 6)
    assert actual.exit_reason.startswith("budget.max_hours=1e-09 is used up: ")
    assert last_state(job)["step"] == 1


def test_train_names_the_step_when_the_loss_is_not_finite(small_plan: Plans, make_job: Jobs):
    job = make_job(small_plan(trainer={"learning_rate": 1e30, "grad_clip": 0.0, "checkpoint_interval": 1}))
    with pytest.raises(TrainingFailed, match=r"the loss of step 2 is (nan|inf)(.|\n)*trainer.learning_rate="):
        train(job)
    assert last_state(job)["step"] == 1
    actual = read_json(Actual, job.run_dir / "actual.json", "actual")
    assert (actual.exit_code, actual.failed_rank, actual.n_steps_done) == (5, 0, 1)
    assert actual.exit_reason.startswith("rank 0, after step 1: the loss of step 2 is")
    assert actual.peak_device_bytes is not None


def test_train_gives_the_same_weights_however_the_batch_is_cut(small_plan: Plans, make_job: Jobs):
    states = []
    for micro_batch_size, grad_accum_steps, kernels in (
        (8, 1, {}),
        (2, 4, {}),
        (1, 8, {}),
        (4, 2, {"attention": Attention.eager, "loss_chunk_tokens": 24}),
    ):
        plan = small_plan(
            micro_batch_size=micro_batch_size, grad_accum_steps=grad_accum_steps, n_steps=4, trainer=kernels
        )
        job = make_job(plan, f"cut-{micro_batch_size}")
        train(job)
        states.append(last_state(job)["model"])
    for state in states[1:]:
        for name, weight in state.items():  # fp32 sums in another order
            torch.testing.assert_close(weight, states[0][name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("precision", "inside", "kept", "products"),
    [("fp32", torch.float32, torch.float32, "highest"), ("fp32", torch.float32, torch.float32, "medium"),
     ("tf32", torch.float32, torch.float32, "high"), ("bf16", torch.bfloat16, torch.float32, "highest"),
     ("fp16", torch.float16, torch.float32, "highest"), ("bf16_pure", torch.bfloat16, torch.bfloat16, "highest")],
)  # fmt: skip
def test_train_really_runs_in_the_precision_of_the_plan(
    small_plan: Plans,
    make_job: Jobs,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    inside: torch.dtype,
    kept: torch.dtype,
    products: str,
):
    seen: set[tuple[torch.dtype, torch.dtype, str]] = set()
    forward = MLP.forward

    def spy(self: MLP, x: torch.Tensor) -> torch.Tensor:
        y = forward(self, x)
        seen.add((y.dtype, self.c_fc.weight.dtype, torch.get_float32_matmul_precision()))
        return y

    monkeypatch.setattr(MLP, "forward", spy)
    matmul = {"float32_matmul_precision": Float32Matmul[products]}
    job = make_job(small_plan(n_steps=2, precision=Precision[precision], trainer=matmul))
    train(job)
    assert seen == {(inside, kept, products)}
    state = last_state(job)
    assert {weight.dtype for weight in state["model"].values()} == {kept}
    assert {entry["exp_avg"].dtype for entry in state["optimizer"]["state"].values()} == {kept}
    assert ("scale" in state["scaler"]) is (precision == "fp16")


def test_train_evaluates_the_same_text_every_time(small_plan: Plans, make_job: Jobs):
    plan = small_plan(n_steps=4, trainer={"eval_interval": 1, "learning_rate": 0.0, "min_learning_rate": 0.0})
    job = make_job(plan)
    train(job)
    assert len(set(metrics(job, "val/loss").values())) == 1


def test_checkpoint_holds_plain_names_the_plan_and_where_it_was(small_plan: Plans, make_job: Jobs):
    job = make_job(small_plan(n_steps=2))
    train(job)
    state = last_state(job)
    assert "transformer.h.1.attn.c_attn.weight" in state["model"]
    assert json.loads(state["plan"])["trainer"]["n_steps"] == 2
    assert state["step"] == 2


def test_learning_rate_warms_up_and_ends_at_the_minimum(small_plan: Plans):
    trainer = small_plan(
        n_steps=100, trainer={"n_warmup_steps": 9, "learning_rate": 1.0, "min_learning_rate": 0.1}
    ).trainer
    assert [learning_rate(trainer, step) for step in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])
    assert learning_rate(trainer, 100) == pytest.approx(0.1)
    assert learning_rate(trainer, 54) == pytest.approx(0.55, abs=0.01)  # half-way
