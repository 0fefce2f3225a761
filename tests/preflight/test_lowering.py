"""The three lowerings, on sums that are done in the head (see simple_sums)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simple_sums import use_simple_sums, with_layers

from conf.choices import Float32Matmul, PolicyChoice
from preflight.lowering.levels import PRECISION, levels, lower_precisions
from preflight.lowering.lower import largest_micro_batch, lower
from preflight.lowering.rungs import _step_takes
from preflight.plan import Precision, valid_micro_batch_sizes
from preflight.units import GIB
from preflight.verdict.needs import broken_budgets

FREE = {"max_hours": None}


@pytest.fixture(autouse=True)
def _simple(monkeypatch):
    use_simple_sums(monkeypatch)


def fields(changes):
    return [(change.field, change.old, change.new) for change in changes]


def test_lower_leaves_a_plan_that_fits_untouched(make_plan):
    plan = make_plan()
    lowered = lower(plan)
    assert lowered.plan is plan
    assert (lowered.changes, lowered.violations, lowered.would_help) == ((), (), ())


def test_lower_takes_the_largest_batch_that_fits_and_keeps_the_tokens_of_a_step(make_plan):
    # 22.3 GiB / 1.1 - 0.45 GiB = 19.9 GiB: 39 sequences of 0.5 GiB; the largest divisor of 120 up to 39 is 30
    plan = make_plan(micro_batch_size=60, grad_accum_steps=2)
    lowered = lower(plan)
    assert fields(lowered.changes) == [("trainer.micro_batch_size", "60", "30")]
    assert lowered.plan.trainer.grad_accum_steps == 4
    assert lowered.plan.trainer.tokens_per_step == plan.trainer.tokens_per_step == 120 * 1024
    assert lowered.plan.trainer.learning_rate == plan.trainer.learning_rate
    assert lowered.changes[0].pin == "lowering.keep=[batch]"


def test_lower_halves_the_batch_only_when_that_is_enough(make_plan):
    # A recipe for 80 GB cards on 45 GB ones: 64 sequences fail, 32 run; precision and model stay (modded-nanogpt#12).
    plan = make_plan(micro_batch_size=64, n_gpus=8, precision=Precision.fp32, budget=FREE)
    plan = replace(plan, hw=replace(plan.hw, card=replace(plan.hw.card, memory_bytes=45 * 10**9)))
    lowered = lower(plan)
    assert fields(lowered.changes) == [("trainer.micro_batch_size", "64", "32")]
    assert lowered.plan.trainer.grad_accum_steps == 2


def test_lower_drops_the_precision_when_no_batch_fits_and_raises_the_batch_again(make_plan):
    # fp32: one sequence is 10 GiB at 120 layers and 4.5 GiB of states: 15.9 GiB of 15 do not fit; bf16: 10.4 do.
    model = with_layers(make_plan().model, 120)
    plan = make_plan(model=model, micro_batch_size=1, precision=Precision.fp32, budget=FREE)
    plan = replace(plan, hw=replace(plan.hw, card=replace(plan.hw.card, memory_bytes=int(15 * GIB / 0.95) + 1)))
    lowered = lower(plan)
    assert fields(lowered.changes) == [("trainer.precision", "fp32", "bf16")]
    assert "activations shrink by 5.0 GiB" in lowered.changes[0].reason
    assert "the 17.9 GiB of fp32 weights, gradients and Adam stay" in lowered.changes[0].reason


def test_lower_goes_to_tf32_when_only_time_is_short(make_plan):
    # 9,000 steps: 40 h in fp32, 20 h in tf32; the batch is left alone, since it does not help
    lowered = lower(make_plan(n_steps=9_000, precision=Precision.fp32, card="a100_80gb"))
    assert fields(lowered.changes) == [("trainer.precision", "fp32", "tf32")]
    assert "a step takes 8.00 s instead of 16 s, memory stays" in lowered.changes[0].reason


def test_tf32_is_no_rung_where_it_is_no_faster(make_plan):
    for card, rounding, expected in (
        ("a100_80gb", Float32Matmul.highest, ["tf32", "bf16"]),
        ("a100_80gb", Float32Matmul.high, ["bf16"]),  # fp32 products are rounded already
        ("4090", Float32Matmul.highest, ["bf16"]),
    ):
        plan = make_plan(card=card, precision=Precision.fp32, trainer={"float32_matmul_precision": rounding})
        assert [lower.trainer.precision.value for lower in levels(plan, PRECISION)[1:]] == expected


def test_lower_finds_the_least_change_for_several_budgets_at_once(make_plan):
    # 16,000 steps: 71 h, 36 h and 18 h; with bf16 the batch goes up to 32, where fp32 and tf32 would need 16
    plan = make_plan(micro_batch_size=64, n_steps=16_000, precision=Precision.fp32)
    assert fields(lower(plan).changes) == [
        ("trainer.precision", "fp32", "bf16"),
        ("trainer.micro_batch_size", "64", "32"),
    ]


def test_lower_never_takes_a_smaller_batch_for_time_or_money(make_plan):
    plan = make_plan(n_steps=36_000, budget={"max_cost_usd": 1.0})
    lowered = lower(plan)
    assert lowered.plan is plan
    assert [violation.budget for violation in lowered.violations] == ["hours", "cost_usd"]
    assert lowered.would_help == ()


def test_lower_takes_a_smaller_model_only_with_consent(make_plan):
    # 36,000 steps: 40 h at 12 layers, 20 h at 6, 10 h at 3
    plan = make_plan(n_steps=36_000)
    smaller = tuple(with_layers(plan.model, n) for n in (6, 3))
    asked = replace(plan, lowering=replace(plan.lowering, smaller_models=smaller))
    refused = lower(asked)
    assert refused.plan is asked
    assert [(change.field, change.new, change.pin) for change in refused.would_help] == [
        ("model", "gpt2_124m_6l", "lowering.allow_model=true")
    ]
    consented = lower(replace(asked, lowering=replace(asked.lowering, allow_model=True)))
    assert consented.plan.model == smaller[0]
    assert consented.plan.trainer == plan.trainer  # the same tokens: the recipe of the smaller model is not applied
    assert consented.changes[0].pin == "lowering.allow_model=false"


def test_lower_keeps_the_asked_micro_batch_with_a_smaller_model(make_plan):
    # 12 layers: 60 sequences do not fit, and 40 h are too long; 6 layers: all 60 fit again (15 GiB) and take 20 h
    plan = make_plan(micro_batch_size=60, n_steps=36_000, lowering={"allow_model": True})
    plan = replace(plan, lowering=replace(plan.lowering, smaller_models=(with_layers(plan.model, 6),)))
    assert fields(lower(plan).changes) == [("model", "gpt2_124m", "gpt2_124m_6l")]


def test_lower_never_changes_the_vocabulary(make_plan):
    plan = make_plan(n_steps=36_000, lowering={"allow_model": True})
    other = replace(with_layers(plan.model, 6), vocab_size=256)
    plan = replace(plan, lowering=replace(plan.lowering, smaller_models=(other,)))
    assert lower(plan).changes == ()


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (("batch",), []),  # 60 sequences do not fit in any precision of bf16
        (("precision",), [("trainer.micro_batch_size", "60", "30")]),
    ],
)
def test_lower_respects_what_is_to_be_kept(make_plan, keep, expected):
    assert fields(lower(make_plan(micro_batch_size=60, lowering={"keep": keep})).changes) == expected


def test_lower_says_what_the_kept_rung_would_have_cured(make_plan):
    lowered = lower(make_plan(micro_batch_size=60, lowering={"keep": ("batch",)}))
    assert [violation.budget for violation in lowered.violations] == ["memory"]
    assert [change.pin for change in lowered.would_help] == ["trainer.micro_batch_size=30"]


def test_lower_changes_nothing_under_refuse_and_says_what_would_help(make_plan):
    plan = make_plan(micro_batch_size=64, n_steps=16_000, precision=Precision.fp32)
    plan = replace(plan, lowering=replace(plan.lowering, policy=PolicyChoice.refuse))
    lowered = lower(plan)
    assert lowered.plan is plan
    assert [change.pin for change in lowered.would_help] == ["trainer.precision=bf16", "trainer.micro_batch_size=32"]
    trainer = replace(plan.trainer, precision=Precision.bf16, micro_batch_size=32, grad_accum_steps=2)
    assert lower(replace(plan, trainer=trainer)).violations == ()


def test_lower_names_consent_and_policy_when_both_stand_in_the_way(make_plan):
    plan = make_plan(n_steps=36_000, lowering={"policy": PolicyChoice.refuse, "keep": ("model", "batch")})
    plan = replace(plan, lowering=replace(plan.lowering, smaller_models=(with_layers(plan.model, 6),)))
    (change,) = lower(plan).would_help
    assert change.pin == "lowering.policy=auto lowering.allow_model=true lowering.keep=[batch]"


def test_lower_judges_but_does_not_search_when_switched_off(make_plan):
    lowered = lower(make_plan(micro_batch_size=60, lowering={"policy": PolicyChoice.off}))
    assert (lowered.changes, lowered.would_help) == ((), ())
    assert [violation.budget for violation in lowered.violations] == ["memory"]


def test_lower_works_out_the_tokens_for_the_plan_that_would_then_run(make_plan, monkeypatch):
    # The batch must go from 60 to 30; suppose smaller passes were twice as slow: then half the tokens fit.
    from simple_sums import simple_estimate

    def slower(plan):
        estimate = simple_estimate(plan)
        factor = 60 / plan.trainer.micro_batch_size
        return replace(estimate, wall=replace(estimate.wall, seconds=estimate.wall.seconds.scaled(factor)))

    estimates = ("verdict.fitting.estimate", "lowering.lower.estimate", "lowering.search.estimate")
    for module in (*estimates, "verdict.judge.work_out"):
        monkeypatch.setattr(f"preflight.{module}", slower)
    plan = make_plan(micro_batch_size=60, n_steps=36_000)  # 40 h asked, 80 h in passes of 30
    hours = next(violation for violation in lower(plan).violations if violation.budget == "hours")
    assert f"trainer.total_tokens={10_800 * plan.trainer.tokens_per_step}" in hours.fix
    assert "budget.max_hours=80" in hours.fix


@pytest.mark.parametrize(
    ("capability", "has_bf16", "asked", "expected"),
    [
        (8.9, True, Precision.fp32, ["tf32", "bf16"]),
        (8.0, True, Precision.tf32, ["bf16"]),
        (8.0, True, Precision.bf16, []),
        (7.5, False, Precision.fp32, ["fp16"]),
        (7.0, False, Precision.fp16, []),
        (6.1, False, Precision.fp32, []),
        (None, False, Precision.fp32, []),
    ],
)
def test_lower_precisions_follow_the_compute_capability(make_plan, capability, has_bf16, asked, expected):
    card = replace(make_plan().hw.card, compute_capability=capability, has_bf16=has_bf16)
    assert [precision.value for precision in lower_precisions(asked, card)] == expected


def test_lower_precisions_of_a_processor_with_bf16_skip_tf32(make_plan):
    assert lower_precisions(Precision.fp32, make_plan(card="cpu").hw.card) == (Precision.bf16,)


def test_largest_micro_batch_divides_the_global_batch(make_plan):
    plan = make_plan(micro_batch_size=12, grad_accum_steps=10, n_gpus=4)
    assert largest_micro_batch(plan) == 30  # 39 would fit, 120 sequences a rank are divided by 30
    assert 30 in valid_micro_batch_sizes(plan.trainer, 4)


def test_largest_micro_batch_is_none_when_not_even_one_fits_or_nobody_knows(make_plan):
    plan = make_plan()
    for memory_bytes in (1, None):
        card = replace(plan.hw.card, memory_bytes=memory_bytes)
        assert largest_micro_batch(replace(plan, hw=replace(plan.hw, card=card))) is None


def test_lower_counts_a_result_that_keeps_every_budget(make_plan):
    plan = make_plan(micro_batch_size=64, n_steps=16_000, precision=Precision.fp32)
    lowered = lower(plan)
    assert broken_budgets(lowered.plan, lowered.estimate) == ()


def test_lower_says_for_which_model_fewer_tokens_are_worked_out(make_plan):
    # 320 layers do not fit; 12 do and take 40 h of 24
    plan = make_plan(model=with_layers(make_plan().model, 320), micro_batch_size=12, n_steps=36_000)
    plan = replace(plan, lowering=replace(plan.lowering, allow_model=True, smaller_models=(make_plan().model,)))
    hours = next(violation for violation in lower(plan).violations if violation.budget == "hours")
    tokens = 21_600 * plan.trainer.tokens_per_step
    assert hours.fix == f"budget.max_hours=40 or trainer.total_tokens={tokens} (each with gpt2_124m, which fits)"


def test_change_does_not_compare_a_time_with_itself():
    assert _step_takes(18.2, 17.9) == "a step still takes 18 s"
    assert _step_takes(18.2, 15.0) == "a step takes 18 s instead of 15 s"
