"""What fits, found by bisection."""

from __future__ import annotations

import pytest
from simple_sums import use_simple_sums

from preflight.verdict.fitting import at_n_steps, largest_fitting, tokens_that_fit
from preflight.verdict.remedies import one_of, rounded_up


@pytest.fixture(autouse=True)
def _simple(monkeypatch):
    use_simple_sums(monkeypatch)


@pytest.mark.parametrize(("sizes", "expected"), [([1, 2, 30, 60], 30), ([60, 120], None), ([1], 1), ([], None)])
def test_largest_fitting_bisects_to_the_last_that_fits(make_plan, sizes, expected):
    # 0.5 GiB a sequence: 40 x 0.5 x 1.1 + 0.5 GiB is more than the 22.3 GiB of a 4090, 30 sequences are not
    assert largest_fitting(make_plan(micro_batch_size=120), sizes) == expected


def test_tokens_that_fit_is_the_last_that_holds(make_plan):
    plan = make_plan(n_steps=1000)
    fits = lambda candidate, estimate: candidate.trainer.n_steps <= 137  # noqa: E731
    assert tokens_that_fit(plan, fits) == 137 * plan.trainer.tokens_per_step


def test_tokens_that_fit_is_none_when_one_step_is_too_much(make_plan):
    assert tokens_that_fit(make_plan(), lambda candidate, estimate: False) is None


def test_at_n_steps_evaluates_and_saves_as_a_run_of_that_length_would_unless_given(make_plan):
    # 500 steps: every 50 an evaluation, every 100 a checkpoint
    plan = make_plan(n_steps=1000, trainer={"eval_interval": 100, "checkpoint_interval": 200})
    shorter = at_n_steps(plan, 500).trainer
    assert (shorter.n_steps, shorter.eval_interval, shorter.checkpoint_interval) == (500, 50, 100)
    given = make_plan(n_steps=1000, trainer={"eval_interval": 100}, provenance={"trainer.eval_interval": "given"})
    assert at_n_steps(given, 500).trainer.eval_interval == 100


@pytest.mark.parametrize(
    ("value", "expected"), [(40.0, 40.0), (40.01, 41.0), (301.2, 310.0), (0.123, 0.13), (99.5, 100.0), (0.0, 0.0)]
)
def test_rounded_up_is_two_digits_and_never_less(value, expected):
    assert rounded_up(value) == expected


@pytest.mark.parametrize(
    ("remedies", "expected"), [([], ""), (["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")]
)
def test_one_of_reads_as_a_sentence(remedies, expected):
    assert one_of(remedies) == expected
