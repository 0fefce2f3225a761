"""When is a checkpoint worth its time?"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest

from preflight.band import exact
from preflight.checks.interval import judge_interval, propose
from preflight.estimate import estimate
from preflight.hw_plan import Interruptions
from preflight.verdict.judge import Severity

SPOT = Interruptions(low_per_hour=0.001, mid_per_hour=0.01, high_per_hour=0.1, source="test", as_of="2026-11-01")


def needs(plan, step_seconds=1.0, save_seconds=4.0, n_saves=5):
    """Round numbers in place of the sums."""
    worked_out = estimate(plan)
    wall = exact(plan.trainer.n_steps * step_seconds, "test")
    return replace(
        worked_out,
        step=replace(worked_out.step, seconds=exact(step_seconds, "test")),
        wall=replace(worked_out.wall, seconds=wall, terms_seconds={"checkpoints": n_saves * save_seconds}),
    )


def long_plan(make_plan, **fields):
    fields = {"card": "a100_80gb", "n_gpus": 8, "n_steps": 100_000, "budget": {"max_hours": None}} | fields
    plan = make_plan(**fields)
    return replace(plan, trainer=replace(plan.trainer, checkpoint_interval=20_000))


def test_propose_is_young_and_dalys_square_root(make_plan):
    # 8 x 1.97e-5 failures an hour: one in 6,345 h; sqrt(2 x 4 s x 22.8e6 s) - 4 s = 13,514 s
    plan = long_plan(make_plan)
    proposal = propose(plan, needs(plan))
    expected = sqrt(2 * 4.0 * 3600 / (8 * 1.97e-5)) - 4.0
    assert proposal.n_steps == round(expected) == 13_514
    assert (proposal.risk, proposal.bound) == ("8 x hardware", "")
    assert proposal.save_seconds == pytest.approx(4.0)


def test_propose_counts_the_copy_alone_where_a_thread_writes(make_plan):
    plan = long_plan(make_plan)
    beside = replace(plan, trainer=replace(plan.trainer, save_beside=True))
    worked_out = estimate(beside)
    proposal, n_bytes = propose(beside, worked_out), worked_out.memory.checkpoint_bytes
    delay = n_bytes / 2e9
    assert proposal.save_seconds == pytest.approx(delay)
    assert proposal.seconds == pytest.approx(sqrt(2 * delay * 3600 / (8 * 1.97e-5)) - delay, rel=1e-3)
    assert proposal.n_steps < propose(plan, estimate(plan)).n_steps
    (finding,) = judge_interval(beside, worked_out)
    assert "one delays the steps by" in finding.message


def test_propose_of_more_than_the_run_is_its_end(make_plan):
    plan = long_plan(make_plan, n_steps=2000)
    often = replace(plan, trainer=replace(plan.trainer, checkpoint_interval=500))
    proposal = propose(often, needs(often))
    assert (proposal.n_steps, proposal.bound) == (2000, " (the end of the run)")


def test_propose_finds_nothing_wasted_in_what_it_proposes_itself(make_plan):
    plan = long_plan(make_plan, n_gpus=1024)
    n_steps = propose(plan, needs(plan, 1.0, 30.0)).n_steps  # every ten minutes or more: 30 s are 5 % of them
    same = replace(plan, trainer=replace(plan.trainer, checkpoint_interval=n_steps))
    again = propose(same, needs(same, 1.0, 30.0, n_saves=-(-100_000 // n_steps)))
    assert (again.n_steps, again.wasted_fraction) == (n_steps, 0.0)


def test_propose_saves_more_often_on_spot_machines_and_without_ecc(make_plan):
    steady = long_plan(make_plan)
    spot = replace(steady, hw=replace(steady.hw, offer=replace(steady.hw.offer, interruptions=SPOT)))
    no_ecc = long_plan(make_plan, card="4090")
    intervals = [propose(plan, needs(plan)) for plan in (spot, no_ecc, steady)]
    assert intervals[0].n_steps < intervals[1].n_steps < intervals[2].n_steps
    assert [each.risk for each in intervals] == ["8 x hardware, spot", "8 x hardware, no ECC", "8 x hardware"]


@pytest.mark.parametrize("n_gpus", [1, 8, 1024])
@pytest.mark.parametrize("save_seconds", [0.1, 30.0])
def test_propose_never_takes_more_than_it_may(make_plan, n_gpus, save_seconds):
    plan = long_plan(make_plan, n_gpus=n_gpus, budget={"max_hours": 24.0})
    proposal = propose(plan, needs(plan, save_seconds=save_seconds))
    assert save_seconds / 0.05 <= proposal.seconds + 1 <= max(2.4 * 3600, save_seconds / 0.05) + 2
    assert proposal.n_steps <= plan.trainer.n_steps


def test_judge_interval_warns_when_the_planned_one_loses_much(make_plan):
    plan = long_plan(make_plan)
    often = replace(plan, trainer=replace(plan.trainer, checkpoint_interval=10))  # 4 s of saving every 10 s
    (finding,) = judge_interval(often, needs(often, n_saves=10_000))
    assert finding.severity is Severity.warning
    assert finding.fix == "trainer.checkpoint_interval=13514"
    assert "one takes 4.00 s, a failure is expected every 264.4 days (8 x hardware" in finding.message
    (quiet,) = judge_interval(plan, needs(plan))
    assert quiet.severity is Severity.info


def test_judge_interval_has_nothing_to_say_of_short_runs(make_plan):
    plan = long_plan(make_plan, n_steps=100)
    assert list(judge_interval(plan, needs(plan))) == []
