"""The one screen that users see, word for word."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simple_sums import simple_step, use_simple_sums

from conf.choices import PolicyChoice, ReportChoice, Show
from preflight.bill import for_launch, make_bill
from preflight.plan import Calibration, Factor, Precision
from preflight.report.grid import grid_row
from preflight.report.refusal import RUNG
from preflight.report.render import render
from preflight.report.text import bill_text
from preflight.verdict.judge import Finding, Severity

GO = """\
GO       gpt2_124m on 4 x RTX 4090 24 GB: 5.7 h, $7.69
memory   6.4 GiB (5.8-7.1) per GPU; 22.3 of 23.5 GiB may be used
time     5.7 h (4.5-7.1): 20,345 steps of 1.00 s, 492,000 tok/s, MFU 40%
money    $7.69 ($6.15-9.61); $1.36/h
energy   2.8 kWh (2.3-3.5), 1.3 kg CO2
batch    12 x 1024 tokens x 10 passes x 4 GPUs = 491,520 a step; up to 30 fits
value    10.0B tokens, 83.3 a parameter (optimal: ~20); loss ~3.10, 3.15 at 3/4
basis    formulas and published measurements; uncalibrated: no run like this yet
"""

LOWERED = """\
GO, LOWERED gpt2_124m on 1 x RTX 4090 24 GB: 17.8 h, $24.18
changed  trainer.precision fp32 -> bf16: over memory and hours: a step takes
         4.00 s instead of 16 s, activations shrink by 16.0 GiB, the 1.8 GiB of
         fp32 weights, gradients and Adam stay. To keep fp32:
         lowering.keep=[precision]
changed  trainer.micro_batch_size 64 -> 32: memory 70.9 GiB -> 18.1 GiB per rank
         at most, 22.3 GiB allowed; 2 passes instead of 1, still 65,536 tokens a
         step. To keep 64: lowering.keep=[batch]
"""

NO = """\
NO       gpt2_124m on 1 x RTX 4090 24 GB: 40.0 h, $54.40; over: hours
over                        need      limit   too much  option
         hours              40 h       24 h       16 h  max_hours=24
  fix    budget.max_hours=40, trainer.total_tokens=265420800 or hw=2x4090
         dry_run=true
memory """

TWO_BUDGETS = """\
over                        need      limit   too much  option
         memory         70.9 GiB   22.3 GiB   48.6 GiB  max_memory_fraction=0.95
         hours           71.11 h       24 h    47.11 h  max_hours=24
  why    memory: trainer.micro_batch_size=64 needs up to 70.9 GiB per rank in
         backward (expected 64.4 GiB); RTX 4090 24 GB allows 22.3 GiB (23.5 GiB
         x 0.95).
  fix    memory: trainer.micro_batch_size=16, or let the launcher choose:
         lowering.policy=auto
  fix    hours: budget.max_hours=72, trainer.total_tokens=353894400 or hw=4x4090
         dry_run=true
  or     trainer.precision=bf16 trainer.micro_batch_size=32   (a yes:
         trainer.precision fp32 -> bf16, trainer.micro_batch_size 64 -> 32)
"""

LADDER = """\
ladder                                memory     saves       time    money  yes?
         as asked                   70.9 GiB             3.0 days   $96.71  no
         micro_batch_size=16        18.1 GiB  52.8 GiB   3.0 days   $96.71  no
         precision=bf16             18.1 GiB  75% time     17.8 h   $24.18  yes
         model=small *              17.8 GiB   252 MiB      8.9 h   $12.09  yes
         * off: type it, or lowering.rungs= (model: lowering.allow_model=true)
"""


@pytest.fixture(autouse=True)
def _simple(monkeypatch):
    use_simple_sums(monkeypatch)


@pytest.fixture
def go_plan(make_plan):
    return make_plan(micro_batch_size=12, grad_accum_steps=10, n_gpus=4, n_steps=20_345)


def warning(n):
    return Finding(check=f"check{n}", severity=Severity.warning, message=f"matter {n}", fix=f"cure={n}")


def test_bill_text_of_a_go_is_eight_lines(go_plan):
    assert bill_text(make_bill(go_plan, ())) == GO


def test_bill_text_tells_each_change_with_its_reason_and_the_way_to_keep_the_old(make_plan):
    plan = make_plan(micro_batch_size=64, n_steps=16_000, precision=Precision.fp32)
    assert bill_text(make_bill(plan, ())).startswith(LOWERED)


def test_bill_text_of_a_refusal_names_budget_need_limit_and_ways_out(make_plan):
    assert bill_text(make_bill(make_plan(n_steps=36_000), ())).startswith(NO)


def test_bill_text_stays_on_one_screen_in_the_worst_of_cases(make_plan):
    plan = make_plan(
        micro_batch_size=64, n_steps=36_000, precision=Precision.fp32, budget={"max_cost_usd": 1.0},
        lowering={"policy": PolicyChoice.refuse},
    )  # fmt: skip
    lines = bill_text(make_bill(plan, tuple(warning(n) for n in range(9)))).splitlines()
    assert len(lines) <= 36
    assert max(len(line) for line in lines) <= 80


def test_bill_text_of_a_refusal_shows_the_whole_ladder(make_plan):
    plan = make_plan(micro_batch_size=64, n_steps=16_000, precision=Precision.fp32)
    small = replace(plan.model, name="small", n_layer=6)
    lowering = replace(plan.lowering, policy=PolicyChoice.refuse, smaller_models=(small,))
    text = bill_text(make_bill(replace(plan, lowering=lowering), ()))
    assert TWO_BUDGETS in text
    assert LADDER in text


def test_bill_text_shows_the_ladder_of_a_plan_that_fits_when_asked(make_plan):
    quiet, loud = (make_plan(lowering={"show": show}) for show in (Show.refused, Show.ladder))
    assert "ladder " not in bill_text(make_bill(quiet, ()))
    text = bill_text(make_bill(loud, ()))
    assert "as asked 7.1 GiB 67 min $1.51 yes" in " ".join(text.split())


def test_bill_text_says_which_larger_batch_would_be_faster(make_plan, monkeypatch):
    monkeypatch.setattr("preflight.lowering.raising.estimate_step_time", quicker_in_large_passes)
    plan = make_plan(micro_batch_size=12, grad_accum_steps=10)
    offered = " ".join(bill_text(make_bill(plan, ())).split())
    assert "= 122,880 a step; 30 fits and saves 5% time (lowering.raise_batch=true)" in offered
    raised = make_bill(replace(plan, lowering=replace(plan.lowering, raise_batch=True)), ())
    assert raised.plan.trainer.micro_batch_size == 30
    assert "changed  trainer.micro_batch_size 12 -> 30: there is room, and a step takes 5%" in bill_text(raised)
    assert bill_text(raised).startswith("GO, CHANGED gpt2_124m")


def quicker_in_large_passes(plan):
    step = simple_step(plan)
    saved = 0.05 if plan.trainer.micro_batch_size > 12 else 0.0
    return replace(step, seconds=step.seconds.scaled(1 - saved - plan.trainer.micro_batch_size / 1e6))


def test_bill_text_says_in_the_first_lines_that_this_is_another_machine(go_plan):
    mismatch = Finding(
        check="machine", severity=Severity.error, exit_code=4, message="declared 4 x 4090, found no GPU", fix="hw=auto"
    )
    dry = bill_text(make_bill(go_plan, (mismatch,))).splitlines()
    assert dry[0].startswith("GO ON PAPER gpt2_124m on 4 x RTX 4090 24 GB")
    assert dry[1].strip() == "declared 4 x 4090, found no GPU"
    real = bill_text(for_launch(make_bill(go_plan, (mismatch,)))).splitlines()
    assert real[0].startswith("WRONG MACHINE")
    assert real[1].strip() == "declared 4 x 4090, found no GPU. Fix: hw=auto"


def test_bill_text_promises_nothing_above_what_would_stop_the_run(go_plan, make_plan):
    missing = Finding(check="data", severity=Severity.error, exit_code=2, message="not prepared", fix="prepare it")
    elsewhere = Finding(check="machine", severity=Severity.error, exit_code=4, message="no GPU", fix="hw=auto")
    dry = make_bill(go_plan, (missing,))
    assert dry.exit_code == 0
    assert bill_text(dry).startswith("GO IF READY gpt2_124m on")
    assert bill_text(make_bill(go_plan, (missing, elsewhere))).startswith("GO IF READY gpt2_124m on")
    assert bill_text(for_launch(dry)).startswith("NOT READY gpt2_124m on")
    refused = make_plan(micro_batch_size=60, lowering={"policy": PolicyChoice.refuse})
    assert bill_text(make_bill(refused, (missing,))).startswith("NO       gpt2_124m on")
    assert [
        word for bill in (dry, for_launch(dry)) for word in (" GO if ready ", " NOT READY ") if word in grid_row(bill)
    ] == [" GO if ready ", " NOT READY "]


def test_bill_text_shows_three_findings_and_counts_the_rest(go_plan):
    text = bill_text(make_bill(go_plan, tuple(warning(n) for n in range(5))))
    assert text.count("warning") == 3
    assert "2 more with report=full" in text


def test_bill_text_leaves_notes_that_change_nothing_to_the_full_report(go_plan):
    note = Finding(check="card", severity=Severity.info, message="a note", fix="")
    bill = make_bill(go_plan, (note,))
    assert "a note" not in bill_text(bill)
    assert "a note" in render(bill, ReportChoice.full)


def test_bill_text_says_unknown_where_nobody_knows(make_plan):
    plan = make_plan(usd_per_hour=None)
    card = replace(plan.hw.card, peak_flops_per_second={}, memory_bytes=None)
    text = bill_text(make_bill(replace(plan, hw=replace(plan.hw, card=card)), ()))
    assert "unknown time, unknown cost" in text
    assert "time     unknown: 1,000 steps of unknown, MFU unknown" in text
    assert "energy   unknown" in text
    assert "how much there is: unknown" in text
    assert "$0" not in text


def test_bill_text_names_the_runs_that_calibrate_it_and_the_raw_number(go_plan, monkeypatch):
    factor = Factor(value=1.2, low=1.1, high=1.3, n_runs=3, scope="same machine")
    plan = replace(go_plan, calibration=Calibration(n_runs=3, factors={"step_seconds": factor}, ledger_sha256="0" * 64))
    bill = make_bill(plan, ())
    slower = replace(bill.estimate.step, raw_seconds=1.25)
    text = bill_text(replace(bill, estimate=replace(bill.estimate, step=slower)))
    assert "basis    calibrated by 3 runs in the ledger (same machine); the formula alone" in text
    assert "says 1.25 s a step" in text


def test_bill_text_of_policy_off_shows_the_budget_as_a_warning_and_goes(make_plan):
    text = bill_text(make_bill(make_plan(n_steps=36_000, lowering={"policy": PolicyChoice.off}), ()))
    assert text.startswith("GO ANYWAY gpt2_124m on 1 x RTX 4090 24 GB: 40.0 h, $54.40; over: hours")
    assert "over     " not in text
    assert "warning  over budget, launched all the same (lowering.policy=off)" in text


def test_bill_text_offers_what_consent_would_allow(make_plan):
    plan = make_plan(n_steps=36_000)
    smaller = replace(plan.model, name="small", n_layer=6)
    text = bill_text(make_bill(replace(plan, lowering=replace(plan.lowering, smaller_models=(smaller,))), ()))
    assert "  or     lowering.allow_model=true   (a yes: model gpt2_124m -> small)" in text


def test_bill_text_notes_what_was_decided_for_the_user(go_plan):
    provenance = {"hw.card": "given: v100 fits several cards; taken is the commonest", "trainer.precision": "default"}
    text = bill_text(make_bill(replace(go_plan, provenance=provenance), ()))
    assert text.splitlines()[-1] == "note     hw.card: v100 fits several cards; taken is the commonest"


def test_bill_text_tells_the_time_besides_training_when_it_counts(go_plan):
    bill = make_bill(go_plan, ())
    for besides, expected in ((1000.0, False), (1200.0, True)):  # of 20,345 s of training
        wall = replace(bill.estimate.wall, terms_seconds={"startup": besides, "steps": 20_345.0})
        text = " ".join(bill_text(replace(bill, estimate=replace(bill.estimate, wall=wall))).split())
        assert ("steps of 1.00 s + 20 min other, 492,000 tok/s" in text) is expected


def test_bill_text_says_not_ready_when_a_real_run_lacks_its_data(go_plan):
    missing = Finding(check="data", severity=Severity.error, exit_code=2, message="data=owt is not prepared", fix="x")
    bill = make_bill(go_plan, (missing,))
    assert bill_text(bill).startswith("GO ")
    assert bill_text(for_launch(bill)).startswith("NOT READY gpt2_124m on 4 x RTX 4090 24 GB")
    assert "error    data=owt is not prepared. Fix: x" in bill_text(for_launch(bill))


def test_ladder_rows_keep_their_columns_apart_when_numbers_are_long():
    row = RUNG.format(
        setting="micro_batch_size=1", memory="4.3 GiB", saves="18.5 GiB", time="12,325.8 days", money="$1", answer="no"
    )
    assert row.split() == ["micro_batch_size=1", "4.3", "GiB", "18.5", "GiB", "12,325.8", "days", "$1", "no"]
