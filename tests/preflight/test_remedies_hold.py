"""What a refusal offers is tried: each override, given on the command line, cures the budget it was offered for."""

from __future__ import annotations

import re

import pytest

from conf.choices import Parallel
from launch import bill
from preflight.estimate import estimate
from preflight.units import format_seconds
from preflight.verdict.remedies import memory_remedy

LARGE = ["model=gpt2_124m", "hw=1x3060", "trainer.micro_batch_size=60", "budget.max_hours=null"]
QUESTIONS = {
    "hours of one T4": ["model=gpt2_350m", "hw=1xt4", "trainer.micro_batch_size=2"],
    "money of a 3060": ["model=gpt2_124m", "hw=1x3060", "budget.max_hours=null", "budget.max_cost_usd=5"],
    "hours and money": ["model=gpt2_774m", "hw=2x4090", "budget.max_cost_usd=5", "trainer.micro_batch_size=2"],
    "hours, strictly": ["model=gpt2_124m", "hw=1x3060", "budget.judge_on=high"],
    "memory, untouched": [*LARGE, "lowering.policy=refuse"],
    "a kept batch": [*LARGE, "lowering.keep=[batch]"],
}


def overrides_in(fix):
    """Each way out on its own: `budget.max_hours=40, trainer.total_tokens=1 or hw=2xt4 dry_run=true`."""
    ways = fix.replace(", or ", ", ").replace(" or ", ", ").split(", ")
    return [[word for word in way.split() if "=" in word] for way in ways if "=" in way]


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_way_out_of_a_refusal_works(name):
    asked = QUESTIONS[name]
    violations = bill(*asked).verdict.violations
    assert violations
    for violation in violations:
        for overrides in overrides_in(violation.fix):
            changed = {override.partition("=")[0] for override in overrides}
            kept = [line for line in asked if line.partition("=")[0] not in changed]
            still = {v.budget for v in bill(*kept, *overrides, "calibration=off").verdict.violations}
            assert violation.budget not in still, overrides


TOGETHER = {
    "a model that fits": ["model=llama_7b", "hw=1x4090"],
    "8-bit moments": ["model=gpt2_1558m", "hw=1x4090"],
    "half the bytes, untouched": ["model=gpt2_774m", "hw=1x3090", "trainer.precision=fp32", "lowering.policy=refuse"],
}


@pytest.mark.parametrize("name", TOGETHER)
def test_each_way_out_of_the_hours_holds_with_the_first_of_the_memory_and_no_limit_is_far_off(name):
    asked = [*TOGETHER[name], "calibration=off"]
    memory, hours = bill(*asked).verdict.violations
    first = overrides_in(memory.fix)[0]
    kept = [line for line in asked if line.partition("=")[0] not in {way.partition("=")[0] for way in first}]
    for way in overrides_in(hours.fix):
        together = bill(*kept, *first, *way)
        assert together.verdict.violations == (), way
        limit = [float(override.partition("=")[2]) for override in way if override.startswith("budget.max_hours=")]
        if limit:
            assert together.estimate.wall.seconds.mid / 3600 == pytest.approx(limit[0], rel=0.1)


def test_ways_to_fit_that_differ_in_time_say_their_own():
    asked = ["model=gpt2_1558m", "hw=1x4090", "calibration=off"]
    memory = bill(*asked).verdict.violations[0]
    ways, told = overrides_in(memory.fix), re.findall(r"\((.*?)\)", memory.fix)
    assert len(ways) == len(told) == 2
    for way, time in zip(ways, told, strict=True):
        kept = asked if not way[0].startswith("hw=") else [line for line in asked if not line.startswith("hw=")]
        there = bill(*kept, *way, "budget.max_hours=null").estimate
        assert format_seconds(there.wall.seconds.mid) == time


def test_the_tokens_that_fit_are_exact():
    asked = ["model=gpt2_350m", "hw=1xt4", "trainer.micro_batch_size=2", "calibration=off"]
    (hours,) = [v for v in bill(*asked).verdict.violations if v.budget == "hours"]
    (tokens,) = [int(o.partition("=")[2]) for way in overrides_in(hours.fix) for o in way if "total_tokens" in o]
    assert bill(*asked, f"trainer.total_tokens={tokens}").verdict.violations == ()
    one_step_more = tokens + bill(*asked).plan.trainer.tokens_per_step
    assert bill(*asked, f"trainer.total_tokens={one_step_more}").verdict.violations


@pytest.mark.parametrize("n_steps", [1, 7, 39, 41, 500, 20_345])
def test_a_shorter_run_is_worked_out_as_it_would_be_planned(n_steps):
    from preflight.verdict.fitting import at_n_steps

    asked = ["model=gpt2_124m", "hw=4x4090", "calibration=off"]
    planned, worked_out = bill(*asked, f"trainer.n_steps={n_steps}").plan, at_n_steps(bill(*asked).plan, n_steps)
    for field in ("n_steps", "eval_interval", "checkpoint_interval", "n_eval_sequences"):
        assert getattr(planned.trainer, field) == getattr(worked_out.trainer, field)


def test_a_rank_that_shares_already_is_offered_others_to_share_with(make_plan):
    plan = make_plan(model="llama_7b", card="a100_80gb", micro_batch_size=8, trainer={"parallel": Parallel.zero3})
    shared = memory_remedy(plan, estimate(plan), "")
    assert shared.startswith("hw=2xa100_80gb trainer.parallel=zero3 trainer.micro_batch_size=")
