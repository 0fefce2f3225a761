"""The document that scripts read: its names are a promise."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from simple_sums import use_simple_sums

from conf.choices import PolicyChoice, ReportChoice
from preflight.bill import for_launch, make_bill
from preflight.errors import ExitCode, Problem
from preflight.report.document import bill_document, error_document
from preflight.report.render import render
from preflight.verdict.judge import Finding, Severity

PROMISED = {
    "": "schema_version plan estimate asked offer calibration exit_code verdict",
    "plan.model": "name n_params n_layer n_head n_kv_head n_embd d_ff vocab_size",
    "plan.hw": "card n_nodes n_gpus_per_node world_size",
    "plan.trainer": (
        "micro_batch_size grad_accum_steps tokens_per_step sequence_length precision compile n_steps total_tokens"
    ),
    "estimate": (
        "memory step_seconds step_terms_seconds tokens_per_second mfu wall_seconds wall_terms_seconds cost_usd "
        "energy_kwh co2_kg checkpoint_bytes disk_bytes host_memory_bytes value"
    ),
    "estimate.memory": "allocated_bytes reserved_bytes device_bytes terms_bytes phase card_bytes usable_bytes",
    "estimate.value": "tokens_per_param expected_loss",
    "estimate.step_seconds": "low mid high source",
    "estimate.memory.device_bytes": "low mid high source",
    "offer": "provider instance usd_per_hour as_of owned",
    "calibration": "n_runs factors ledger_sha256",
    "verdict": "decision violations changes findings",
}


@pytest.fixture(autouse=True)
def _simple(monkeypatch):
    use_simple_sums(monkeypatch)


def at(document, path):
    for name in path.split(".") if path else ():
        document = document[name]
    return document


@pytest.mark.parametrize("path", PROMISED)
def test_bill_document_has_every_promised_name(make_plan, path):
    document = bill_document(make_bill(make_plan(), ()))
    assert set(PROMISED[path].split()) <= set(at(document, path))


def test_bill_document_holds_the_numbers_of_the_bill(make_plan):
    bill = make_bill(make_plan(micro_batch_size=12, grad_accum_steps=10, n_gpus=4), ())
    document = bill_document(bill)
    assert document["schema_version"] == 1
    assert document["plan"]["hw"]["card"] == "4090"
    assert document["plan"]["hw"]["world_size"] == 4
    assert document["plan"]["model"]["n_params"] == bill.estimate.n_params
    assert document["plan"]["trainer"]["precision"] == "bf16"
    assert document["plan"]["trainer"]["total_tokens"] == 1000 * 491_520
    assert document["estimate"]["step_seconds"]["mid"] == 1.0
    assert document["verdict"]["decision"] == "go"
    assert document["asked"] is None
    assert document["exit_code"] == 0


def test_bill_document_keeps_the_estimate_as_asked_when_lowering_changed_it(make_plan):
    document = bill_document(make_bill(make_plan(micro_batch_size=60), ()))
    (change,) = document["verdict"]["changes"]
    assert set(change) == {"rung", "field", "old", "new", "reason", "pin"}
    assert document["verdict"]["decision"] == "go_lowered"
    assert document["asked"]["memory"]["device_bytes"]["mid"] > document["estimate"]["memory"]["device_bytes"]["mid"]
    assert document["plan"]["trainer"]["micro_batch_size"] == 30
    assert document["asked_plan"]["trainer"]["micro_batch_size"] == 60


def test_bill_document_lists_violations_and_findings(make_plan):
    finding = Finding(check="machine", severity=Severity.error, message="m", fix="f", exit_code=4)
    plan = make_plan(micro_batch_size=60, lowering={"policy": PolicyChoice.refuse})
    document = bill_document(make_bill(plan, (finding,)))
    (violation,) = document["verdict"]["violations"]
    assert set(violation) == {"budget", "need", "limit", "message", "fix", "nearest"}
    assert document["verdict"]["findings"][0]["severity"] == "error"
    assert document["exit_code"] == 3
    assert bill_document(for_launch(make_bill(plan, (finding,))))["exit_code"] == 4


def test_bill_document_says_null_where_nobody_knows(make_plan):
    plan = make_plan(usd_per_hour=None)
    card = replace(plan.hw.card, peak_flops_per_second={}, memory_bytes=None)
    document = bill_document(make_bill(replace(plan, hw=replace(plan.hw, card=card)), ()))
    estimate = document["estimate"]
    unknown = ("step_seconds", "tokens_per_second", "mfu", "wall_seconds", "cost_usd", "energy_kwh", "co2_kg")
    assert [estimate[name] for name in unknown] == [None] * len(unknown)
    assert estimate["memory"]["card_bytes"] is None
    assert document["offer"]["usd_per_hour"] is None


def test_bill_document_has_finite_numbers_only(make_plan):
    bill = make_bill(make_plan(), ())
    endless = replace(bill.estimate.step, flops_per_step=math.inf, mfu=math.nan)
    bill = replace(bill, estimate=replace(bill.estimate, step=endless))
    document = bill_document(bill)
    assert document["estimate"]["flops_per_step"] is None
    assert document["estimate"]["mfu"] is None
    json.dumps(document, allow_nan=False)


def test_render_json_is_one_document_on_one_line(make_plan):
    text = render(make_bill(make_plan(), ()), ReportChoice.json)
    assert text.count("\n") == 1
    assert json.loads(text)["verdict"]["decision"] == "go"


def test_error_document_has_every_problem(make_plan):
    problem = Problem(path="trainer.n_steps", value="0", message="must be at least 1", fix="trainer.n_steps=1")
    assert error_document(ExitCode.CONFIG, [problem]) == {
        "schema_version": 1,
        "exit_code": 2,
        "problems": [
            {"path": "trainer.n_steps", "value": "0", "message": "must be at least 1", "fix": "trainer.n_steps=1"}
        ],
    }
