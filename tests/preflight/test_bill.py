"""From plan and findings to decision and exit code."""

from __future__ import annotations

import pytest
from simple_sums import use_simple_sums

from conf.choices import PolicyChoice
from preflight.bill import for_launch, launch_exit_code, make_bill
from preflight.errors import ExitCode
from preflight.verdict.judge import Decision, Finding, Severity


@pytest.fixture(autouse=True)
def _simple(monkeypatch):
    use_simple_sums(monkeypatch)


def finding(severity, exit_code=0, check="machine"):
    return Finding(check=check, severity=severity, message="something", fix="hw=auto", exit_code=exit_code)


WRONG_MACHINE = finding(Severity.error, 4)
NO_DATA = finding(Severity.error, 2, "data")


def test_make_bill_is_a_go_for_a_plan_that_fits(make_plan):
    bill = make_bill(make_plan(), ())
    assert (bill.verdict.decision, bill.exit_code) == (Decision.go, ExitCode.OK)
    assert (bill.asked_plan, bill.asked_estimate) == (None, None)
    assert bill.largest_micro_batch == 12


def test_make_bill_keeps_what_was_asked_for_when_it_lowers(make_plan):
    plan = make_plan(micro_batch_size=60)
    bill = make_bill(plan, ())
    assert (bill.verdict.decision, bill.exit_code) == (Decision.go_lowered, ExitCode.OK)
    assert bill.asked_plan is plan
    assert bill.asked_estimate.memory.device.mid > bill.estimate.memory.device.mid
    assert bill.verdict.violations == ()


def test_make_bill_refuses_with_exit_3_and_the_plan_as_asked(make_plan):
    plan = make_plan(micro_batch_size=60, lowering={"policy": PolicyChoice.refuse})
    bill = make_bill(plan, ())
    assert (bill.verdict.decision, bill.exit_code) == (Decision.refuse, ExitCode.OVER_BUDGET)
    assert bill.plan is plan
    assert [change.pin for change in bill.verdict.would_help] == ["trainer.micro_batch_size=30"]


def test_make_bill_warns_and_goes_when_the_policy_is_off(make_plan):
    bill = make_bill(make_plan(micro_batch_size=60, n_steps=36_000, lowering={"policy": PolicyChoice.off}), ())
    assert (bill.verdict.decision, bill.exit_code) == (Decision.go, ExitCode.OK)
    assert [f.check for f in bill.verdict.findings] == ["budget.memory", "budget.hours"]
    assert all(f.severity is Severity.warning for f in bill.verdict.findings)
    assert "lowering.policy=off" in bill.verdict.findings[0].message


def test_make_bill_puts_the_gravest_finding_first(make_plan):
    findings = (finding(Severity.info), finding(Severity.warning), WRONG_MACHINE)
    bill = make_bill(make_plan(), findings)
    assert [f.severity for f in bill.verdict.findings] == [Severity.error, Severity.warning, Severity.info]


@pytest.mark.parametrize("findings", [(WRONG_MACHINE,), (NO_DATA,), (WRONG_MACHINE, NO_DATA)])
def test_make_bill_of_a_machine_that_is_not_here_is_still_a_go_on_paper(make_plan, findings):
    bill = make_bill(make_plan(), findings)
    assert (bill.verdict.decision, bill.exit_code) == (Decision.go, ExitCode.OK)


@pytest.mark.parametrize(
    ("findings", "n_steps", "expected"),
    [
        ((), 1000, ExitCode.OK),
        ((finding(Severity.warning),), 1000, ExitCode.OK),
        ((WRONG_MACHINE,), 1000, ExitCode.WRONG_MACHINE),
        ((WRONG_MACHINE,), 36_000, ExitCode.WRONG_MACHINE),
        ((WRONG_MACHINE, NO_DATA), 36_000, ExitCode.CONFIG),
        ((), 36_000, ExitCode.OVER_BUDGET),
    ],
)
def test_launch_exit_code_lets_the_configuration_win_then_the_machine_then_the_budget(
    make_plan, findings, n_steps, expected
):
    bill = make_bill(make_plan(n_steps=n_steps), findings)
    assert launch_exit_code(bill) is expected
    assert for_launch(bill).exit_code is expected


def test_for_launch_says_wrong_machine(make_plan):
    bill = for_launch(make_bill(make_plan(), (WRONG_MACHINE,)))
    assert bill.verdict.decision is Decision.wrong_machine


def test_for_launch_leaves_a_go_alone(make_plan):
    bill = make_bill(make_plan(), ())
    assert for_launch(bill) == bill


def test_make_bill_is_the_same_for_the_same_plan(make_plan):
    plan = make_plan(micro_batch_size=60, n_steps=36_000)
    assert make_bill(plan, ()) == make_bill(plan, ())


def test_bill_shows_itself_in_one_line(make_plan):
    text = repr(make_bill(make_plan(), ()))
    assert text.startswith("<Bill of gpt2_124m on 1 x RTX 4090 24 GB: go, ")
    assert "\n" not in text
