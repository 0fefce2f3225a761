"""A run that goes on is offered what it takes: limits, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from launcher.new_budget import of_resumed
from preflight.bill import make_bill
from preflight.plan import RunPlan
from preflight.report.text import bill_text
from preflight.units import GIB
from preflight.verdict.judge import Finding, Severity


@pytest.mark.parametrize(
    ("asked", "budget", "fixes"),
    [
        ({"card": "cpu", "model": "tiny"}, {"max_cost_usd": 1.0, "max_hours": None}, ["budget.max_cost_usd=null"]),
        ({"n_steps": 2_000_000}, {"max_cost_usd": 1.0, "deadline": "2026-12-01", "deadline_hours": 1.0},
         ["budget.max_hours=", "budget.deadline=null", "budget.max_cost_usd="]),
        ({}, {"max_memory_fraction": 0.05}, ["budget.max_memory_fraction=0."]),
        ({"micro_batch_size": 4000}, {"max_hours": None}, [""]),
        ({}, {"max_disk_bytes": GIB / 2}, ["budget.max_disk_gib="]),
    ],
)  # fmt: skip
def test_resumed_bill_offers_limits_alone(
    asked: dict[str, object], budget: dict[str, object], fixes: list[str], make_plan: Callable[..., RunPlan]
):
    bill = of_resumed(make_bill(make_plan(**asked, budget=budget, lowering={"keep": ("batch", "precision")}), ()))
    assert bill.verdict.violations
    for violation, start in zip(bill.verdict.violations, fixes, strict=True):
        assert violation.fix.startswith(start)
    shown = bill_text(bill)
    for option in ("hw.", "hw=", "model=", "trainer.", "lowering."):
        assert option not in shown.partition("fix")[2]
    assert "give hw.watts" not in shown


def test_resumed_bill_keeps_what_can_be_done_about_its_findings(make_plan: Callable[..., RunPlan]):
    fixes = ("trainer.n_steps=126", "hw=2xcpu", "ulimit -n 4096", "budget.max_hours=41")
    findings = tuple(Finding(check="x", severity=Severity.warning, message="x", fix=fix) for fix in fixes)
    kept = of_resumed(make_bill(make_plan(), findings)).verdict.findings
    assert [finding.fix for finding in kept if finding.check == "x"] == [
        "",
        "",
        "ulimit -n 4096",
        "budget.max_hours=41",
    ]
