"""The working: every term, and where each number came from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conf.choices import PolicyChoice, ReportChoice
from preflight.bill import make_bill
from preflight.plan import Calibration, Factor, Precision
from preflight.report.render import render
from preflight.report.text import bill_text
from preflight.verdict.judge import Finding, Severity


@pytest.fixture
def full(make_plan):
    provenance = {"trainer.micro_batch_size": "given", "hw.card": "given", "trainer.precision": "default"}
    bill = make_bill(make_plan(n_gpus=4, grad_accum_steps=10, provenance=provenance), ())
    return bill, render(bill, ReportChoice.full)


def test_full_text_begins_with_the_one_screen_bill(full):
    bill, text = full
    assert text.startswith(bill_text(bill))


def test_full_text_has_every_finding_of_a_go_and_of_a_no(make_plan):
    kinds = [(Severity.error, 2)] + 4 * [(Severity.warning, 0)] + 2 * [(Severity.info, 0)]
    findings = tuple(
        Finding(check=f"check{n}", severity=severity, message=f"matter {n}", fix="", exit_code=code)
        for n, (severity, code) in enumerate(kinds)
    )
    refused = make_plan(micro_batch_size=60, lowering={"policy": PolicyChoice.refuse})
    for plan in (make_plan(), refused):
        text = render(make_bill(plan, findings), ReportChoice.full)
        assert [text.count(f"matter {n}") for n in range(7)] == [1] * 7
        assert "more with report=full" not in text


def test_full_text_says_nothing_twice(make_plan):
    provenance = {"trainer.micro_batch_size": "recipe: 12 instead of 16, the largest that divides 480 sequences"}
    bill = make_bill(make_plan(grad_accum_steps=10, provenance=provenance), ())
    plain = bill_text(bill)
    working = render(bill, ReportChoice.full).removeprefix(plain)
    lines = {" ".join(line.split()) for line in plain.splitlines() if len(line.split()) > 2}
    assert not lines & {" ".join(line.split()) for line in working.splitlines()}
    assert plain.count("the largest that divides") == 1
    assert "the largest that divides" not in working
    assert bill.estimate.cost.rates.basis not in working


def test_full_text_names_every_term(full):
    bill, text = full
    terms = [
        *bill.estimate.memory.terms_bytes,
        *bill.estimate.memory.phases_bytes,
        *bill.estimate.step.terms_seconds,
        *bill.estimate.wall.terms_seconds,
    ]
    assert [term for term in terms if term.removesuffix("_bytes").replace("_", " ") not in text] == []


def test_full_text_gives_the_short_rules_in_gb_and_gib(full):
    # 124,373,760 parameters with a vocabulary of 50,304: 12 and 16 bytes are 1.49 and 1.99 GB, 1.39 and 1.85 GiB
    _, text = full
    assert "the rule of 12 to 16 B a parameter: 1.49-1.99 GB = 1.39-1.85 GiB" in text
    assert "fp32 weights, gradients and Adam, 16 B a parameter: 1.9 GiB" in text
    assert "accelerate estimate-memory (bf16): 949 MiB, batch 1, no activations or logits" in text


def test_full_text_tells_where_each_input_came_from(full):
    _, text = full
    rows = {tuple(line.split()) for line in text.splitlines()}
    assert ("trainer.micro_batch_size", "12", "given") in rows
    assert ("trainer.precision", "bf16", "default") in rows


def test_full_text_dates_its_sources(full):
    _, text = full
    assert "card 4090 test, 2026-11-01" in text
    assert "runpod 4xRTX 4090 24 GB: test, 2026-11-01" in text


def test_full_text_shows_each_calibration_factor(make_plan):
    factor = Factor(value=1.2, low=1.1, high=1.3, n_runs=3, scope="same machine")
    plan = replace(make_plan(), calibration=Calibration(n_runs=3, factors={"step_seconds": factor}, ledger_sha256=None))
    text = render(make_bill(plan, ()), ReportChoice.full)
    assert "Calibration from 3 runs of the ledger" in text
    assert "(1.1-1.3)  3 runs, same machine" in text


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("choice", ReportChoice)
def test_render_knows_every_precision(make_plan, precision, choice):
    assert render(make_bill(make_plan(precision=precision), ()), choice)
