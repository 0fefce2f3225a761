"""Adapters: nothing at first, counted as billed, frozen means frozen, saved alone, melted in without a trace."""

# ruff: noqa: TID253 - torch is what is tested here
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.choices import Activation, Adapter, AdapterTargets, Norm, Positions
from preflight.errors import ConfigError
from preflight.params import adapter_params
from preflight.plan import Checkpointing, Precision, RunPlan
from preflight.planfile import to_jsonable
from scripts.export_hf import main as export_hf
from scripts.sample import main as sample
from tests.trainers.stopping_at import StopAt
from trainers import build, checkpoint, hf_weights, lora
from trainers.gpt import GPT
from trainers.job import Job, NeverStop
from trainers.pretrain import train

Plans = Callable[..., RunPlan]
Jobs = Callable[..., Job]
T = 16
LLAMA = {"norm": Norm.rmsnorm, "positions": Positions.rotary, "activation": Activation.swiglu, "n_kv_head": 1}
LORA = {"adapter": Adapter.lora, "lora_rank": 4, "learning_rate": 1e-2}


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(64, (4, T + 1), generator=torch.Generator().manual_seed(0))
    return tokens[:, :-1], tokens[:, 1:]


def with_llama(plan: RunPlan) -> RunPlan:
    return replace(plan, model=replace(plan.model, **LLAMA))  # type: ignore[arg-type]


def trained(model: GPT) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def weights(job: Job) -> dict[str, torch.Tensor]:
    path, _ = checkpoint.find_latest(job.run_dir)
    assert path is not None
    model: dict[str, torch.Tensor] = checkpoint.load(path)["model"]
    return model


@pytest.mark.parametrize("targets", AdapterTargets)
@pytest.mark.parametrize("style", ["gpt2", "llama"])
def test_adapters_are_counted_as_billed(small_plan: Plans, targets: AdapterTargets, style: str):
    plan = small_plan(trainer=LORA | {"lora_targets": targets})
    plan = with_llama(plan) if style == "llama" else plan
    n_trained = sum(parameter.numel() for parameter in trained(build.build_model(plan)))
    assert n_trained == adapter_params(plan.model, targets, 4)


def test_adapted_model_starts_as_the_plain_one_and_melts_into_what_it_became(small_plan: Plans):
    plan = with_llama(small_plan(trainer=LORA))
    plain = build.build_model(replace(plan, trainer=replace(plan.trainer, adapter=Adapter.none)))
    adapted = build.build_model(plan)
    torch.testing.assert_close(adapted(*batch()), plain(*batch()))
    torch.manual_seed(3)
    for parameter in trained(adapted):
        parameter.data += 0.05 * torch.randn_like(parameter)
    assert not torch.allclose(adapted(*batch()), plain(*batch()))
    plain.load_state_dict(lora.merged_state(adapted))
    torch.testing.assert_close(plain(*batch()), adapted(*batch()))


def test_only_adapters_get_gradients_and_each_of_them_does(small_plan: Plans):
    model = build.build_model(with_llama(small_plan(trainer=LORA)))
    for parameter in trained(model):
        parameter.data += 0.05  # at zero, B hides A
    model(*batch()).backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) is (".lora_" in name)
        assert parameter.grad is None or parameter.grad.any()


@pytest.mark.parametrize("targets", AdapterTargets)
def test_recomputation_changes_no_gradient_of_an_adapter(small_plan: Plans, targets: AdapterTargets):
    gradients = []
    for checkpointing in Checkpointing:
        trainer = LORA | {"activation_checkpointing": checkpointing, "lora_targets": targets}
        model = build.build_model(with_llama(small_plan(trainer=trainer)))
        torch.manual_seed(3)
        for parameter in trained(model):
            parameter.data += 0.05 * torch.randn_like(parameter)
        model(*batch()).backward()
        gradients.append([parameter.grad for parameter in trained(model)])
    torch.testing.assert_close(gradients[1:], [gradients[0]] * 2)


def test_frozen_matrices_have_16_bits_where_matmuls_do(small_plan: Plans):
    model = build.build_model(with_llama(small_plan(precision=Precision.bf16, trainer=LORA)))
    kinds = {(".lora_" in name, p.dim() == 2, p.dtype) for name, p in model.named_parameters()}
    assert kinds == {(True, True, torch.float32), (False, True, torch.bfloat16), (False, False, torch.float32)}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_pure"])
def test_train_resumes_exactly_with_adapters_alone_in_the_checkpoint(small_plan: Plans, make_job: Jobs, precision: str):
    plan = with_llama(small_plan(n_steps=6, precision=Precision[precision], trainer=LORA))
    undisturbed, stopped = make_job(plan, "undisturbed"), make_job(plan, "stopped", stop=StopAt(3))
    train(undisturbed)
    assert train(stopped).n_steps_done == 3
    train(replace(stopped, stop=NeverStop(), resume=True))
    assert all(".lora_" in name for name in weights(undisturbed))
    for name, weight in weights(stopped).items():
        assert torch.equal(weight, weights(undisturbed)[name])


def test_adapters_go_on_from_a_run_and_are_exported_as_plain_weights(
    small_plan: Plans, make_job: Jobs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Pre-train, adapt, hand on: each starts from what the one before has learnt."""
    base_plan = with_llama(small_plan(n_steps=20, trainer={"learning_rate": 1e-2}))
    base = make_job(base_plan, "base")
    base_loss = train(base).val_loss
    plan = with_llama(small_plan(n_steps=5, trainer=LORA | {"init_from": str(base.run_dir)}))
    adapted = make_job(plan, "adapted")
    adapted_loss = train(adapted).val_loss
    assert base_loss is not None
    assert adapted_loss is not None
    assert adapted_loss < base_loss
    assert export_hf([str(adapted.run_dir), str(tmp_path / "out")]) == 0
    assert "LlamaForCausalLM of tiny after step 5" in capsys.readouterr().out
    whole = build.build_model(replace(plan, trainer=replace(plan.trainer, adapter=Adapter.none,
                                                            init_from=f"hf:{tmp_path / 'out'}")))  # fmt: skip
    same, _, step = build.load_trained(checkpoint.path_of(adapted.run_dir, 5))
    assert step == 5
    torch.testing.assert_close(whole(*batch()), same(*batch()))
    assert hf_weights.read_folder(tmp_path / "out", plan.model).keys() == whole.state_dict().keys()


@pytest.mark.parametrize(
    ("adapter", "precision"), [*((Adapter.lora, one) for one in Precision), (Adapter.qlora, Precision.bf16)]
)
def test_a_run_with_adapters_is_sampled_and_exported_in_each_precision(
    small_plan: Plans, tmp_path: Path, capsys: pytest.CaptureFixture[str], adapter: Adapter, precision: Precision
):
    if adapter is Adapter.qlora:
        pytest.importorskip("bitsandbytes")
    plan = with_llama(small_plan(precision=precision, trainer=LORA | {"adapter": adapter}))
    plan = replace(plan, model=replace(plan.model, n_layer=1, n_embd=64, d_ff=128, vocab_size=256))
    state = {name: value for name, value in build.build_model(plan).state_dict().items() if ".lora_" in name}
    checkpoint.save(tmp_path / "run", 1, {"model": state, "plan": json.dumps(to_jsonable(plan))}, keep=1)
    assert sample([str(tmp_path / "run"), "--tokens", "2", "--prompt", "ab"]) == 0
    assert capsys.readouterr().out.startswith("ab")
    assert export_hf([str(tmp_path / "run"), str(tmp_path / "out")]) == 0


def test_a_run_without_checkpoints_is_named(small_plan: Plans, tmp_path: Path):
    plan = small_plan(trainer={"init_from": str(tmp_path / "nothing")})
    with pytest.raises(ConfigError, match=r"trainer.init_from=.*nothing: no sound checkpoint there"):
        build.build_model(plan)


def test_frozen_weights_have_four_bits_under_qlora_and_the_model_still_learns(small_plan: Plans, make_job: Jobs):
    pytest.importorskip("bitsandbytes")
    settings: dict[str, Any] = LORA | {"adapter": Adapter.qlora}
    plan = small_plan(n_steps=12, trainer=settings)
    plan = replace(plan, model=replace(plan.model, n_embd=64, d_ff=128))  # whole blocks of 64 weights
    model = build.build_model(plan)
    linear = model.transformer["h"][0].attn.c_attn
    assert linear.quantized[0].nbytes == 64 * 192 // 2
    assert linear.weight.numel() == 0
    plain = build.build_model(replace(plan, trainer=replace(plan.trainer, adapter=Adapter.none)))
    kept = torch.corrcoef(
        torch.stack([linear.merged().flatten(), plain.transformer["h"][0].attn.c_attn.weight.flatten()])
    )
    assert kept[0, 1] > 0.99
    actual = train(make_job(plan))
    assert actual.val_loss is not None
    assert actual.val_loss < 4.1
