"""Options that contradict each other: all are told at once, and every fix that is proposed works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from resolving import LAPTOP, RTX_4090, problem_of, problems_of, resolved, with_gpus

from conf.choices import OptimizerKernel
from preflight.machine.snapshot import Machine

GPU = with_gpus(RTX_4090)
GPT2 = ("model=gpt2_124m", "hw=1xa100_80gb")
LLAMA = ("model=llama_125m", "hw=8xa100_80gb")
CASES = [
    (("model.n_positions=64",), "model.n_positions", "ends before a sequence of 128 tokens"),
    (("model.positions=rotary", "model.n_positions=512"), "model.n_positions", "no table"),
    (("model.rope_theta=500000",), "model.rope_theta", "do not rotate"),
    (("model.positions=rotary", "model.head_dim=33"), "model.head_dim", "pairs of channels"),
    (("model.positions=rotary", "model.n_embd=126"), "model.head_dim", "pairs of channels, a head has 63"),
    (("model.n_head=3",), "model.n_embd", "3 heads do not divide it"),
    (("trainer.optimizer=adafactor", "trainer.optimizer_kernel=fused"), "trainer.optimizer_kernel", "no such kernel"),
    (("trainer.optimizer=adamw_8bit", "trainer.optimizer_kernel=loop"), "trainer.optimizer_kernel", "it has fused"),
    (("trainer.optimizer=muon", "trainer.parallel=zero3"), "trainer.parallel", "orthogonal"),
    (("trainer.optimizer=adafactor", "trainer.parallel=zero2"), "trainer.parallel", "rows and columns"),
    (("trainer.optimizer=adamw_8bit", "trainer.parallel=zero1"), "trainer.parallel", "bitsandbytes"),
    (("trainer.adapter=lora", "trainer.parallel=zero3"), "trainer.parallel", "adapters"),
    (("trainer.adapter=lora", "trainer.lora_rank=4096"), "trainer.lora_rank", "above the width"),
    (("trainer.init_from=/nowhere",), "trainer.init_from", "no run with a checkpoint"),
    (("trainer.init_from=hf:/nowhere",), "trainer.init_from", "no config.json"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "path", "message"), CASES, ids=lambda value: str(value)[:40])
def test_what_makes_no_sense_is_refused_with_a_fix_that_works(overrides: tuple[str, ...], path: str, message: str):
    problem = problem_of(*overrides)
    assert problem.path == path
    assert message in problem.message
    fix = problem.fix.split(", or ")[0]
    if "DIR" not in fix:
        resolved(*overrides, fix)


def test_what_needs_several_ranks_or_nodes_is_told_where_there_is_one():
    asked = ("model=gpt2_124m", "trainer.parallel=zero3", "trainer.bucket_views=false", "hw.network_gbit_per_second=25")
    alone = resolved(*asked, "hw=1x4090").provenance
    idle = {path: origin.partition(": ")[2] for path, origin in alone.items() if "changes nothing" in origin}
    assert idle.keys() == {"trainer.parallel", "trainer.bucket_views", "hw.network_gbit_per_second"}
    assert idle["trainer.parallel"] == "a single rank has nobody to share with, so zero3 changes nothing"
    together = resolved(*asked, "hw=2x4x4090").provenance
    assert not [origin for origin in together.values() if "changes nothing" in origin]


def test_leave_to_round_fp32_products_is_told_where_it_has_no_effect():
    path = "trainer.float32_matmul_precision"
    asked = ("model=gpt2_124m", "trainer.precision=fp32", f"{path}=high")
    told = "given: high has no effect on T4 16 GB, products of fp32 numbers stay exact"
    assert resolved(*asked, "hw=1xt4").provenance[path] == told
    assert path not in resolved(*asked, "hw=1x4090").provenance


def test_what_another_optimizer_adapter_or_precision_reads_is_told():
    asked = ("trainer.lora_rank=4", "trainer.lora_alpha=3", "trainer.lora_targets=attention", "trainer.beta1=0.8",
             "trainer.beta2=0.9", "trainer.muon_learning_rate=0.1", "trainer.max_nonfinite_steps=7")  # fmt: skip
    told = {
        path.removeprefix("trainer."): origin
        for path, origin in resolved(*asked, "trainer.optimizer=sgd").provenance.items()
        if "no effect" in origin
    }
    assert told.keys() == {
        "lora_rank", "lora_alpha", "lora_targets", "beta2", "muon_learning_rate", "max_nonfinite_steps"
    }  # fmt: skip
    assert told["lora_rank"] == "given: 4 has no effect with trainer.adapter=none"
    assert told["beta2"] == "given: 0.9 has no effect with trainer.optimizer=sgd"
    assert "no effect" in resolved("trainer.beta1=0.8", "trainer.optimizer=adafactor").provenance["trainer.beta1"]
    fp16 = (*GPT2, "trainer.optimizer=muon", "trainer.adapter=lora", "trainer.precision=fp16")
    assert not [origin for origin in resolved(*asked, *fp16).provenance.values() if "no effect" in origin]


def test_fp16_and_slices_do_not_go_together_on_a_card():
    problem = problem_of("hw=8xa100_80gb", "model=gpt2_124m", "trainer.precision=fp16", "trainer.parallel=zero3")
    assert "loss scaler" in problem.message


def test_tf32_and_exact_products_contradict_each_other():
    asked = ("hw=1xa100_80gb", "model=gpt2_124m", "trainer.precision=tf32")
    assert resolved(*asked).trainer.float32_matmul_precision.name == "high"
    problem = problem_of(*asked, "trainer.float32_matmul_precision=highest")
    assert problem.path == "trainer.float32_matmul_precision"


def test_pure_bf16_needs_bf16_too():
    problem = problem_of("hw=1xt4", "model=gpt2_124m", "trainer.precision=bf16_pure")
    assert "bf16 needs compute capability 8.0" in problem.message


def test_apple_gpus_have_no_bitsandbytes():
    from dataclasses import replace

    apple: Machine = replace(LAPTOP, platform="darwin", apple_gpu="Apple M2", cpu_name="Apple M2")
    problems = problems_of("trainer.optimizer=adamw_8bit", "trainer.adapter=qlora", machine=apple)
    assert [problem.path for problem in problems] == ["trainer.optimizer", "trainer.adapter"]


def test_all_contradictions_are_told_at_once():
    problems = problems_of("model.n_positions=64", "trainer.optimizer=muon", "trainer.parallel=zero2", "model.n_head=3")
    assert {problem.path for problem in problems} == {"model.n_positions", "trainer.parallel", "model.n_embd"}


@pytest.mark.parametrize(
    "overrides",
    [
        ("model.activation=swiglu",),
        ("model.norm=rmsnorm", "model.positions=rotary", "model.activation=relu2", "model.qk_norm=true"),
        ("model.head_dim=48",),  # need not divide the width
        ("model.n_positions=2048",),
        (*LLAMA, "trainer.optimizer=muon", "trainer.parallel=zero1"),
        (*LLAMA, "trainer.parallel=zero3"),
        (*LLAMA, "trainer.adapter=qlora"),
    ],
)
def test_unusual_but_sensible_combinations_pass(overrides: tuple[str, ...]):
    resolved(*overrides)


@pytest.mark.parametrize(
    ("optimizer", "kernel"), [("adamw", "fused"), ("sgd", "fused"), ("muon", "fused"), ("adafactor", "foreach")]
)
def test_default_kernel_is_the_fastest_that_there_is(optimizer: str, kernel: str):
    assert resolved(f"trainer.optimizer={optimizer}").trainer.optimizer_kernel is OptimizerKernel[kernel]


@pytest.mark.parametrize("prefix", ["", "hf:"])
def test_start_with_a_name_that_no_folder_can_have_is_refused(prefix: str):
    (problem,) = problems_of("hw=4090", f"trainer.init_from={prefix}{'a' * 400}")
    assert (problem.path, problem.message) == ("trainer.init_from", "cannot be looked at: File name too long")


def test_start_is_absolute_in_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text(json.dumps({}))
    (tmp_path / "weights" / "model.safetensors").touch()
    monkeypatch.chdir(tmp_path)
    assert resolved("trainer.init_from=hf:weights").trainer.init_from == f"hf:{tmp_path / 'weights'}"
