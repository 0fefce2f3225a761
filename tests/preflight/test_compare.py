"""The same job on every card and offer: who is in the table, in which order, and what is marked."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from resolving import CREATED_AT, LAPTOP, RTX_4090, config_of, with_gpus

from conf.choices import CompareBy, Parallel
from preflight.band import Band
from preflight.bill import make_bill
from preflight.catalog import listed_offers
from preflight.compare import Comparison, Row, compare, ranked
from preflight.errors import ConfigError, ExitCode
from preflight.lowering.lower import lower, settle
from preflight.machine.snapshot import Machine
from preflight.planfile import to_jsonable
from preflight.report.compare import compare_csv, compare_document, compare_exit_code, compare_text
from preflight.report.scatter import compare_png
from preflight.resolve.resolve import resolve


def compared(*overrides: str, machine: Machine = LAPTOP, records: Sequence[dict[str, Any]] = ()) -> Comparison:
    given = {word.partition("=")[0] for word in overrides}
    overrides = (*overrides, "action=compare", *([] if "model" in given else ["model=gpt2_124m"]))
    return compare(config_of(*overrides), machine, command="test", created_at=CREATED_AT, records=records)


def rows_of(comparison: Comparison, hw: str, provider: str | None = None) -> list[Row]:
    return [
        row
        for row in comparison.rows
        if row.hw == hw and (provider is None or (row.plan is not None and row.plan.hw.offer.provider == provider))
    ]


def a_row(comparison: Comparison, usd: float | None, hours: float | None, **fields: Any) -> Row:
    """One of its rows with other money and hours."""
    row = rows_of(comparison, "1x4090")[0]
    assert row.estimate is not None
    wall = replace(row.estimate.wall, seconds=_band(hours, 3600.0))
    cost = replace(row.estimate.cost, cost_usd=_band(usd, 1.0), energy_kwh=_band(hours, 2.0))
    return replace(row, estimate=replace(row.estimate, wall=wall, cost=cost), **{"broken": (), **fields})


def _band(value: float | None, unit: float) -> Band | None:
    return None if value is None else Band(low=value * unit, mid=value * unit, high=value * unit, source="test")


@pytest.fixture(scope="module")
def gpt2() -> Comparison:
    return compared()


def test_row_is_the_bill_of_that_machine(gpt2: Comparison) -> None:
    row = rows_of(gpt2, "4x4090", "runpod")[0]
    plan = resolve(config_of("model=gpt2_124m", "hw=4x4090"), LAPTOP, command="", created_at=CREATED_AT)
    bill = make_bill(plan, ())
    assert row.plan is not None
    assert row.plan.trainer == bill.plan.trainer
    assert row.hours == bill.estimate.wall.seconds.scaled(1 / 3600)  # type: ignore[union-attr]
    # 4 x 0.34 USD an hour, as the catalog says of a community pod
    assert row.usd is not None
    assert row.hours is not None
    assert row.usd.mid == pytest.approx(1.36 * row.hours.mid, rel=1e-3)  # whole seconds are billed


def test_every_offer_and_every_card_has_a_row(gpt2: Comparison) -> None:
    offers = {(each.card_name, each.n_gpus, each.offer.provider) for each in listed_offers(with_spot=False)}
    sold = {(row.card_name, row.n_gpus, row.plan.hw.offer.provider) for row in gpt2.rows if row.plan is not None}
    # 480 sequences a step do not divide among 7 ranks: one row for each card, whoever sells it
    assert {offer for offer in offers - sold if offer[1] != 7} == set()
    (seven,) = rows_of(gpt2, "7x4090")
    assert "7 ranks do not divide 480 sequences" in seven.why_not
    (unsold,) = rows_of(gpt2, "1x4080")
    assert unsold.usd is None
    assert unsold.hours is not None


def test_4090_beats_a100_on_money_at_a_glance(gpt2: Comparison) -> None:
    lines = compare_text(gpt2, is_full=False).splitlines()
    (rtx,) = [i for i, line in enumerate(lines) if " 1x4090 " in line]
    (a100,) = [i for i, line in enumerate(lines) if " 1xa100_40gb " in line]
    assert rtx < a100
    assert max(map(len, lines)) <= 120


def test_winner_with_an_old_price_says_so_and_names_the_cheapest_of_the_new_ones(gpt2: Comparison) -> None:
    def dated(usd: float, hours: float, as_of: str) -> Row:
        row = a_row(gpt2, usd, hours, is_on_front=True)
        assert row.plan is not None
        hw = row.plan.hw
        return replace(row, plan=replace(row.plan, hw=replace(hw, offer=replace(hw.offer, as_of=as_of))))

    old, new = dated(3.0, 8.0, "2026-08-31"), dated(5.0, 4.0, "2026-09-01")  # 91 and 90 days before the bill
    told = compare_text(replace(gpt2, rows=(old, new)), is_full=False)
    cheapest, other, fastest = told.splitlines()[2:5]
    assert cheapest.startswith("cheapest hw=1x4090: $3.00 in 8.0 h, ")
    assert cheapest.endswith(", price of 2026-08")
    assert other.startswith("or       hw=1x4090: $5.00 in 4.0 h, ")
    assert other.endswith("the cheapest price of the last 90 days")
    assert "price of" not in fastest
    assert "price of" not in "".join(compare_text(replace(gpt2, rows=(new,)), is_full=False).splitlines()[:5])


def test_rows_within_budget_come_first_and_unknown_last(gpt2: Comparison) -> None:
    rows = [
        a_row(gpt2, usd, hours, broken=broken)
        for usd, hours, broken in [
            (1.0, 50.0, ("hours",)), (None, 2.0, ()), (9.0, 1.0, ()), (3.0, 4.0, ()), (0.5, 1.0, ("memory",)),
        ]
    ]  # fmt: skip
    money = [row.usd.mid if row.usd else None for row in ranked(rows, CompareBy.cost)]
    assert money == [3.0, 9.0, None, 1.0, 0.5]
    hours = [row.hours.mid if row.hours else None for row in ranked(rows, CompareBy.time)]
    assert hours == [1.0, 2.0, 4.0, 50.0, 1.0]


@pytest.mark.parametrize(("by", "value"), [("cost", "usd"), ("time", "hours"), ("energy", "kwh")])
def test_by_ranks_by_that_number(by: str, value: str) -> None:
    goes = [getattr(row, value).mid for row in compared(f"compare.by={by}").rows if row.is_go and getattr(row, value)]
    assert len(goes) > 100
    assert goes == sorted(goes)


def test_front_is_what_no_other_beats(gpt2: Comparison) -> None:
    known = [row for row in gpt2.rows if row.is_go and row.usd is not None and row.hours is not None]
    pairs = {id(row): (row.usd.mid, row.hours.mid) for row in known if row.usd and row.hours}
    beaten = {
        id(row)
        for row in known
        if any(o != pairs[id(row)] and o[0] <= pairs[id(row)][0] and o[1] <= pairs[id(row)][1] for o in pairs.values())
    }
    assert {id(row) for row in gpt2.rows if row.is_on_front} == {id(row) for row in known} - beaten
    assert 2 <= sum(row.is_on_front for row in gpt2.rows) <= 30


def test_settled_plan_is_the_one_that_lower_finds(make_plan) -> None:  # type: ignore[no-untyped-def]
    for size, budget in [(12, {}), (60, {}), (60, {"max_cost_usd": 0.01}), (12, {"max_hours": 0.001})]:
        plan = make_plan(micro_batch_size=size, grad_accum_steps=480 // size, budget=budget)
        ((settled, estimate, broken),) = settle(plan, [plan.hw])
        lowered = lower(plan)
        assert bool(lowered.violations) == bool(broken)
        if not broken:
            assert (settled, estimate) == (lowered.plan, lowered.estimate)
        elif size == 60:  # over the money whatever is lowered: what would run is still what fits
            assert settled.trainer.micro_batch_size < 60
            assert broken == ("cost_usd",)


def test_lowered_rows_say_what_was_lowered() -> None:
    comparison = compared("trainer.micro_batch_size=60", "trainer.compile=false")
    (small,) = rows_of(comparison, "1x4060ti")
    assert small.plan is not None
    size = small.plan.trainer.micro_batch_size
    assert size < 60
    assert small.lowered == (f"batch 60 -> {size}",)
    assert small.plan.trainer.tokens_per_step == 491_520
    (large,) = rows_of(comparison, "8xb200", "lambda")
    assert large.lowered == ()


def test_max_gpus_and_providers_leave_others_out() -> None:
    comparison = compared("compare.max_gpus=2", "compare.providers=[vast,lambda]")
    rest = [row for row in comparison.rows if not row.is_yours]
    assert {row.plan.hw.offer.provider for row in rest if row.plan is not None} == {"vast", "lambda"}
    assert {row.n_gpus for row in rest} == {1, 2}


def test_max_hours_leaves_slower_offers_out_and_says_how_many(gpt2: Comparison) -> None:
    comparison = compared("compare.max_hours=2")
    assert all(row.hours is None or row.hours.mid <= 2 for row in comparison.rows if not row.is_yours)
    assert comparison.n_slower == len(gpt2.rows) - len(comparison.rows)
    assert f"{comparison.n_slower} slower than compare.max_hours=2 left out" in " ".join(
        compare_text(comparison, is_full=False).split()
    )


def test_spot_adds_cheaper_offers_and_says_so(gpt2: Comparison) -> None:
    comparison = compared("compare.spot=true")
    assert not any(row.is_spot for row in gpt2.rows)
    (spot,) = [row for row in rows_of(comparison, "8xh100", "azure") if row.is_spot]
    (steady,) = [row for row in rows_of(comparison, "8xh100", "azure") if not row.is_spot]
    assert spot.usd is not None
    assert steady.usd is not None
    # 18.169536 against 98.32 USD an hour
    share = 18.169536 / 98.32
    assert share < spot.usd.mid / steady.usd.mid < 1.02 * share  # and restarts
    assert "the restarts to expect are counted" in " ".join(compare_text(comparison, is_full=False).split())


def test_budgets_mark_rows_and_decide_the_exit_code() -> None:
    comparison = compared("budget.max_hours=null", "budget.max_cost_usd=0.5")
    assert compare_exit_code(comparison) is ExitCode.OVER_BUDGET
    assert all("cost_usd" in row.broken or not row.fits for row in comparison.rows if row.plan is not None)
    assert "0 fit and keep budget.max_cost_usd=0.5" in " ".join(compare_text(comparison, is_full=False).split())
    assert any(row.is_on_front for row in comparison.rows)  # of what fits, since nothing is a go


def test_a_machine_of_yours_is_a_row_among_them() -> None:
    comparison = compared("hw=2x3090", "hw.owned=true", "hw.country=germany")
    (yours,) = [row for row in comparison.rows if row.is_yours]
    assert (yours.hw, yours.n_gpus) == ("2x3090", 2)
    assert yours.kwh is not None
    assert yours.usd is not None
    assert yours.usd.mid == pytest.approx(0.404 * yours.kwh.mid)  # Germany's tariff, no rent
    assert " yours " in compare_text(comparison, is_full=False)


def test_a_rented_machine_that_was_asked_for_stands_there_once() -> None:
    comparison = compared("hw=1x4090")
    cheapest = [row for row in rows_of(comparison, "1x4090", "openrelay")]
    assert [row.is_yours for row in cheapest] == [True]


def test_cards_of_this_machine_are_used_as_far_as_they_divide() -> None:
    (yours,) = [row for row in compared(machine=with_gpus(*[RTX_4090] * 7)).rows if row.is_yours]
    assert yours.n_gpus == 6


def test_what_one_machine_cannot_do_is_a_reason_there_alone() -> None:
    comparison = compared("trainer.precision=fp16")  # CPUs have no fast fp16
    (yours,) = [row for row in comparison.rows if row.is_yours]
    assert "fp16" in yours.why_not
    assert compare_exit_code(comparison) is ExitCode.OK


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        compared(
            "compare.max_gpus=0", "compare.max_hours=-1", "compare.providers=[runpd]", "compare.png=/nowhere/x.png",
            "compare.csv=/", "model.dropout=2", "hw.country=atlantis",
        )  # fmt: skip
    paths = {problem.path: problem.fix for problem in caught.value.problems}
    assert paths == {
        "compare.max_gpus": "compare.max_gpus=null",
        "compare.max_hours": "compare.max_hours=null",
        "compare.providers": "'compare.providers=[runpod]'",
        "compare.png": "compare.png=offers.png",
        "compare.csv": "compare.csv=offers.csv",
        "model.dropout": "model.dropout=0",
        "hw.country": "hw.country=world",
    }


def test_a_job_that_is_wrong_everywhere_is_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        compared("trainer.tokens_per_step=1000", "trainer.sequence_length=128")
    assert [problem.path for problem in caught.value.problems] == ["trainer.tokens_per_step"]


@pytest.mark.parametrize(
    "option",
    ["by=time", "max_hours=3", "max_gpus=2", "providers=[vast]", "spot=true", "csv=offers.csv", "png=offers.png"],
)
def test_options_without_a_comparison_are_refused(option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(config_of(f"compare.{option}"), LAPTOP, command="", created_at=CREATED_AT)
    (problem,) = caught.value.problems
    assert (problem.path, problem.fix) == (f"compare.{option.partition('=')[0]}", "action=compare")


def test_earlier_runs_on_a_card_calibrate_its_rows(gpt2: Comparison) -> None:
    row = rows_of(gpt2, "4x4090", "runpod")[0]
    assert row.estimate is not None
    assert row.estimate.step.seconds is not None
    plan = row.plan
    actual = {"actual/n_steps_done": 20_345, "actual/step_seconds": 2 * row.estimate.step.seconds.mid}
    record = {"plan": to_jsonable(plan), "actual": actual}
    slower = rows_of(compared(records=[record, {"plan": {}}]), "4x4090", "runpod")[0]
    assert slower.estimate is not None
    assert slower.estimate.step.seconds is not None
    assert slower.estimate.step.seconds.mid > 1.5 * row.estimate.step.seconds.mid


def test_old_prices_serve_where_nobody_newer_sells() -> None:
    listed = listed_offers(with_spot=False)
    rtx_3060 = [each for each in listed if each.card_name == "3060"]
    assert [(each.n_gpus, each.offer.as_of) for each in rtx_3060] == [(1, "2026-01-01")]
    one_h100 = [each for each in listed if (each.card_name, each.n_gpus) == ("h100", 1)]
    assert min(each.offer.as_of for each in one_h100) > "2026-05-01"
    pods = [each for each in listed if each.card_name == "4090" and each.offer.instance.endswith("community pod")]
    assert [each.n_gpus for each in pods] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [each.offer.usd_per_hour for each in pods] == pytest.approx([0.34 * n for n in range(1, 9)])


def test_json_and_csv_have_every_row(gpt2: Comparison) -> None:
    document = compare_document(gpt2)
    assert (document["by"], document["exit_code"], len(document["rows"])) == ("cost", 0, len(gpt2.rows))
    first = document["rows"][0]
    assert first["rank"] == 1
    assert first["cost_usd"]["low"] <= first["cost_usd"]["mid"] <= first["cost_usd"]["high"]
    lines = list(csv.DictReader(io.StringIO(compare_csv(gpt2))))
    assert [line["hw"] for line in lines] == [row["hw"] for row in document["rows"]]
    assert float(lines[0]["cost_usd"]) == first["cost_usd"]["mid"]
    unsold = next(line for line in lines if line["hw"] == "1x4080")
    assert (unsold["cost_usd"], unsold["provider"], unsold["usd_per_hour"]) == ("", "", "")


def test_full_text_has_a_line_a_row(gpt2: Comparison) -> None:
    lines = compare_text(gpt2, is_full=True).splitlines()
    assert sum(line[:3].strip().isdigit() for line in lines) == len(gpt2.rows)
    assert max(map(len, lines)) <= 120


def test_png_is_a_picture(gpt2: Comparison) -> None:
    assert compare_png(gpt2).startswith(b"\x89PNG\r\n")
    assert compare_png(replace(gpt2, rows=())).startswith(b"\x89PNG\r\n")


def test_old_prices_show_their_month(gpt2: Comparison) -> None:
    lines = compare_text(gpt2, is_full=True).splitlines()
    assert all("price of 2026-01" in line for line in lines if " 8xv100 " in line and " vast " in line)
    assert not any("price of 2026-09" in line or "price of 2026-1" in line for line in lines)  # of the last 90 days


def test_what_was_lowered_beyond_batch_and_precision_is_told() -> None:
    """7B: a card of 80 GB holds no whole states; eight of them do, shared."""
    some = compared("model=llama_7b", "compare.providers=[runpod]", "lowering=all")
    row = next(row for row in some.rows if row.hw == "8xh100")
    assert row.plan is not None
    assert row.plan.trainer.parallel is not Parallel.ddp
    assert f"parallel ddp -> {row.plan.trainer.parallel.value}" in row.lowered
    assert row.plan.trainer.parallel.value in compare_text(some, is_full=False)


def test_what_does_not_fit_says_what_it_needs_and_what_else_may_be_lowered() -> None:
    text = compare_text(compared("model=llama_7b", "compare.providers=[runpod]"), is_full=False)
    assert re.search(r"h100 .*does not fit: 1(89|91) GiB", text)
    assert "lowering=all also tries shared states" in text


def test_when_all_are_slower_the_fastest_is_named() -> None:
    text = compare_text(compared("model=gpt2_124m", "compare.max_hours=0.1"), is_full=False)
    assert "left out, of which the fastest is hw=8xb200: " in " ".join(text.split())
