"""Each rule updates as its paper says, is really the kernel that was asked for, and goes on exactly after a stop."""

# ruff: noqa: TID253 - torch is what is tested here
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from saved import assert_identical, last_state

from conf.choices import Adapter, Optimizer, OptimizerKernel
from preflight.plan import Precision, RunPlan
from tests.trainers.stopping_at import StopAt
from trainers.gpt import GPT
from trainers.job import Job, NeverStop
from trainers.optimizers import Combined, make_optimizer, set_learning_rate
from trainers.pretrain import train

Plans = Callable[..., RunPlan]
Jobs = Callable[..., Job]
T = 16
FOREACH = {"optimizer_kernel": OptimizerKernel.foreach}


def gpt(plan: RunPlan) -> GPT:
    torch.manual_seed(1)
    return GPT(plan.model, T)


def test_matrices_and_embeddings_decay_and_nothing_else(small_plan: Plans):
    plan = small_plan()
    model = gpt(replace(plan, model=replace(plan.model, bias=True, qkv_bias=True)))
    decayed, not_decayed = make_optimizer(model, plan.trainer).param_groups
    assert (decayed["weight_decay"], not_decayed["weight_decay"]) == (0.1, 0.0)
    assert {p.dim() for p in decayed["params"]} == {2}
    assert {p.dim() for p in not_decayed["params"]} == {1}
    assert len(decayed["params"]) + len(not_decayed["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize("kernel", OptimizerKernel)
@pytest.mark.parametrize("rule", [Optimizer.adamw, Optimizer.sgd])
def test_kernel_is_the_one_that_was_asked_for_and_changes_nothing(
    small_plan: Plans, rule: Optimizer, kernel: OptimizerKernel
):
    results = []
    for asked in (kernel, OptimizerKernel.loop):
        plan = small_plan(trainer={"optimizer": rule, "optimizer_kernel": asked})
        model = gpt(plan)
        optimizer = make_optimizer(model, plan.trainer)
        group = optimizer.param_groups[0]
        assert bool(group["fused"]) is (asked is OptimizerKernel.fused)
        assert bool(group["foreach"]) is (asked is OptimizerKernel.foreach)
        for step in range(3):
            torch.manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
        results.append(model.lm_head.weight)
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", [Optimizer.adamw, Optimizer.sgd, Optimizer.adafactor, Optimizer.muon])
def test_what_is_kept_for_each_parameter(small_plan: Plans, rule: Optimizer):
    """Elements of states, by hand: the sums of the bill rest on them."""
    plan = small_plan(trainer={"optimizer": rule} | FOREACH)
    model = gpt(plan)
    optimizer = make_optimizer(model, plan.trainer)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    parts = optimizer.parts if isinstance(optimizer, Combined) else (optimizer,)
    n_kept = sum(
        value.numel()
        for part in parts
        for state in part.state.values()
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and name != "step"
    )
    matrices = [p for name, p in model.named_parameters() if ".h." in name and p.dim() == 2]
    n_all, n_matrix = (sum(p.numel() for p in some) for some in (list(model.parameters()), matrices))
    n_vector = sum(p.numel() for p in model.parameters() if p.dim() == 1)
    rows_and_columns = sum(sum(p.shape) for p in model.parameters() if p.dim() == 2)
    expected = {
        Optimizer.adamw: 2 * n_all,
        Optimizer.sgd: n_all,
        Optimizer.adafactor: rows_and_columns + n_vector,
        Optimizer.muon: n_matrix + 2 * (n_all - n_matrix),
    }
    assert n_kept == expected[rule]


def test_muon_trains_the_matrices_of_the_blocks_and_makes_their_updates_orthogonal(small_plan: Plans):
    plan = small_plan(trainer={"optimizer": Optimizer.muon, "muon_learning_rate": 0.5, "weight_decay": 0.0})
    model = gpt(plan)
    optimizer = make_optimizer(model, plan.trainer)
    square = model.transformer["h"][0].attn.c_proj.weight
    before, table = square.detach().clone(), model.lm_head.weight.detach().clone()
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    spectrum = torch.linalg.svdvals((square - before) / 0.5)
    assert spectrum.min() > 0.5  # Newton-Schulz brings them near 1, not to it (Jordan et al. 2024: 0.7 to 1.2)
    assert spectrum.max() < 1.3
    assert (model.lm_head.weight - table).abs().max() <= 1.01 * plan.trainer.learning_rate  # Adam's first step


def test_schedule_scales_every_group_by_its_own_rate(small_plan: Plans):
    plan = small_plan(trainer={"optimizer": Optimizer.muon, "learning_rate": 1e-3, "muon_learning_rate": 0.02})
    optimizer = make_optimizer(gpt(plan), plan.trainer)
    set_learning_rate(optimizer, 5e-4)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.01, 5e-4, 5e-4])
    optimizer.load_state_dict(optimizer.state_dict())
    set_learning_rate(optimizer, 1e-3)
    inner = [group["lr"] for part in optimizer.parts for group in part.param_groups]  # type: ignore[attr-defined]
    assert inner == pytest.approx([0.02, 1e-3, 1e-3])


@pytest.mark.parametrize("rule", Optimizer)
def test_train_learns_and_resumes_exactly_with_every_optimizer(small_plan: Plans, make_job: Jobs, rule: Optimizer):
    if rule is Optimizer.adamw_8bit:
        pytest.importorskip("bitsandbytes")
    rate = {Optimizer.sgd: 0.1, Optimizer.adafactor: 3e-2}.get(rule, 1e-2)
    settings = {"optimizer": rule, "learning_rate": rate, "eval_interval": 0, "checkpoint_interval": 0} | FOREACH
    plan = small_plan(n_steps=12, dropout=0.1, trainer=settings)
    undisturbed, stopped = make_job(plan, "undisturbed"), make_job(plan, "stopped", stop=StopAt(4))
    actual = train(undisturbed)
    assert train(stopped).n_steps_done == 4
    train(replace(stopped, stop=NeverStop(), resume=True))
    assert_identical(last_state(stopped), last_state(undisturbed))
    assert actual.val_loss is not None
    assert actual.val_loss < 4.1  # a uniform guess is ln 64 = 4.16
    if rule is Optimizer.adamw_8bit:
        kept = [state["__bnb_optimizer_quant_state__"] for state in last_state(stopped)["optimizer"]["state"].values()]
        assert {state["state1"].dtype for state in kept} == {torch.uint8, torch.float32}  # small ones are not quantised


def test_loss_scaler_skips_both_parts_of_muon(small_plan: Plans, make_job: Jobs):
    """fp16 starts with a scale of 65,536: steps whose gradients overflow leave no trace."""
    settings = {"optimizer": Optimizer.muon, "checkpoint_interval": 1} | FOREACH
    job = make_job(small_plan(n_steps=3, precision=Precision.fp16, trainer=settings))
    assert train(job).n_steps_done == 3
    assert "scale" in last_state(job)["scaler"]


def test_frozen_weights_have_no_state(small_plan: Plans, make_job: Jobs):
    job = make_job(small_plan(n_steps=1, trainer={"adapter": Adapter.lora, "lora_rank": 2}))
    train(job)
    state = last_state(job)
    n_trained = sum(weight.numel() for weight in state["model"].values())
    assert all(".lora_" in name for name in state["model"])
    assert sum(entry["exp_avg"].numel() for entry in state["optimizer"]["state"].values()) == n_trained
