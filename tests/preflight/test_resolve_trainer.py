from dataclasses import replace

import pytest
from resolving import LAPTOP, RTX_4090, problem_of, resolved, with_gpus

from conf.choices import Attention
from preflight.plan import Checkpointing, Precision


@pytest.mark.parametrize(
    ("hw", "precision"),
    [
        ("4090", Precision.bf16),
        ("a100_80gb", Precision.bf16),
        ("v100", Precision.fp16),
        ("t4", Precision.fp16),
        ("mi300x", Precision.bf16),
        ("cpu", Precision.bf16),
    ],
)
def test_auto_precision_is_what_the_hardware_does_well(hw, precision):
    assert resolved("model=gpt2_124m", "data=stdlib", f"hw={hw}").trainer.precision is precision


def test_auto_precision_is_fp32_without_bf16_units():
    old = replace(LAPTOP, cpu_flags=frozenset({"avx2"}))
    assert resolved(machine=old).trainer.precision is Precision.fp32
    assert resolved(machine=replace(LAPTOP, apple_gpu="Apple M2")).trainer.precision is Precision.fp32
    pascal = replace(RTX_4090, name="NVIDIA GeForce GTX 1080", compute_capability=6.1)
    assert resolved(machine=with_gpus(pascal)).trainer.precision is Precision.fp32


def test_bf16_may_be_asked_of_any_cpu():
    old = replace(LAPTOP, cpu_flags=frozenset({"avx2"}))
    assert resolved("trainer.precision=bf16", machine=old).trainer.precision is Precision.bf16


def test_compile_is_on_for_cards_and_off_for_the_cpu():
    assert resolved("hw=4090").trainer.compile
    assert not resolved("hw=cpu").trainer.compile
    assert not resolved("hw=4090", "trainer.compile=false").trainer.compile


@pytest.mark.parametrize(
    ("overrides", "attention"),
    [
        (["hw=4090"], Attention.sdpa),
        (["hw=cpu"], Attention.eager),  # bf16
        (["hw=cpu", "trainer.precision=fp32"], Attention.sdpa),
        (["hw=cpu", "trainer.precision=fp32", "trainer.float32_matmul_precision=medium"], Attention.eager),
        (["hw=cpu", "trainer.precision=fp32", "model.dropout=0.1"], Attention.eager),  # no fused kernel has dropout
        (["hw=cpu", "trainer.sequence_length=2048"], Attention.sdpa),
        (["hw=cpu", "trainer.attention=sdpa"], Attention.sdpa),
    ],
)
def test_attention_is_written_out_where_that_is_faster(overrides, attention):
    assert resolved(*overrides).trainer.attention is attention


def test_ten_billion_tokens_are_20345_steps():
    trainer = resolved("model=gpt2_124m", "hw=8xa100_40gb").trainer
    assert trainer.n_steps == 20_345  # 10^10 / 491,520 = 20,345.05
    assert trainer.total_tokens == 20_345 * 491_520


def test_rounding_to_whole_steps_is_told_when_it_matters():
    plan = resolved("trainer.tokens_per_step=4096", "trainer.total_tokens=10000")  # 2.44 steps of 4,096
    assert plan.trainer.n_steps == 2
    assert plan.provenance["trainer.total_tokens"] == "given: 8,192 instead, 2 whole steps"
    assert resolved("trainer.total_tokens=1000000").provenance["trainer.total_tokens"] == "given"


def test_steps_and_tokens_that_agree_may_both_be_given():
    trainer = resolved("trainer.tokens_per_step=4096", "trainer.n_steps=100", "trainer.total_tokens=409600").trainer
    assert trainer.n_steps == 100


def test_schedule_is_worked_out_in_steps():
    trainer = resolved("trainer.n_steps=500", "trainer.learning_rate=1e-3", "trainer.warmup_fraction=0.1").trainer
    assert (trainer.n_warmup_steps, trainer.min_learning_rate) == (50, pytest.approx(1e-4))
    assert resolved("trainer.warmup_fraction=0").trainer.n_warmup_steps == 0
    assert resolved("trainer.n_steps=3").trainer.n_warmup_steps == 1


def test_published_recipes_keep_their_warm_up():
    assert resolved("experiment=nanogpt_600k").trainer.n_warmup_steps == 2000
    assert resolved("experiment=llmc_124m").trainer.n_warmup_steps == 700
    assert resolved("experiment=shakespeare_char").trainer.n_warmup_steps == 100


@pytest.mark.parametrize("n_steps", [1, 7, 40, 100, 732, 20_345, 600_000])
def test_evaluation_stays_a_small_share_of_the_run(n_steps):
    trainer = resolved(f"trainer.n_steps={n_steps}").trainer
    n_evaluations = n_steps // trainer.eval_interval + 1
    forward_tokens = n_evaluations * trainer.n_eval_sequences * trainer.sequence_length
    assert forward_tokens / 3 <= 0.1 * trainer.total_tokens + trainer.tokens_per_step


@pytest.mark.parametrize(
    ("n_steps", "intervals"),
    [(20, (4, 4, 1)), (100, (10, 20, 2)), (732, (74, 147, 10)), (20_345, (1000, 1000, 10))],
)
def test_intervals_follow_the_number_of_steps(n_steps, intervals):
    trainer = resolved(f"trainer.n_steps={n_steps}").trainer
    assert (trainer.eval_interval, trainer.checkpoint_interval, trainer.log_interval) == intervals


def test_given_intervals_stand():
    trainer = resolved("trainer.eval_interval=0", "trainer.checkpoint_interval=3", "trainer.log_interval=1").trainer
    assert (trainer.eval_interval, trainer.checkpoint_interval, trainer.log_interval) == (0, 3, 1)


def test_given_evaluation_is_rounded_up_to_whole_sequences_of_every_rank():
    trainer = resolved("hw=2xcpu", "trainer.eval_tokens=1000").trainer  # 1000 / 128 = 7.8 sequences
    assert trainer.n_eval_sequences == 8


def test_other_switches_are_passed_on():
    trainer = resolved("trainer.activation_checkpointing=full", "trainer.grad_clip=0", "trainer.beta2=0.99").trainer
    assert (trainer.activation_checkpointing, trainer.grad_clip, trainer.beta2) == (Checkpointing.full, 0, 0.99)


def test_saving_beside_is_for_cards():
    assert resolved("model=gpt2_124m", "hw=4090").trainer.save_beside
    assert not resolved("hw=cpu").trainer.save_beside
    problem = problem_of("hw=cpu", "trainer.save_beside=true")
    assert (problem.path, problem.fix) == ("trainer.save_beside", "trainer.save_beside=null")
