"""What action=calibrate measured goes into later plans of the same card and torch release, newest first."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight.calibration.probes import probe_record, read_probes, with_probes
from preflight.hw_plan import Measured
from preflight.plan import Precision, RunPlan
from preflight.planfile import from_jsonable, to_jsonable
from preflight.report.calibration import probe_lines
from preflight.step_time.card_rates import card_rates
from preflight.step_time.communication import fabric
from preflight.step_time.constants import CPU, CUDA
from preflight.step_time.step import estimate_step_time
from tests.conftest import RTX_4090, build_plan

FOUND: dict[str, Any] = {
    "torch": "2.13.0+cpu",
    "matmul": [
        {"precision": "fp32", "n": 256, "flops_per_second": 90e9},
        {"precision": "fp32", "n": 1024, "flops_per_second": 120e9},
        {"precision": "bf16", "n": 1024, "flops_per_second": 300e9},
    ],
    "bandwidth_bytes_per_second": 12e9,
    "pass_seconds": 2e-3,
    "layer_seconds": 5e-4,
    "disk_write_bytes_per_second": 200e6,
    "disk_read_bytes_per_second": 800e6,
    "bus_bytes_per_second": None,
    "bus_latency_seconds": None,
    "n_ranks": 1,
    "notes": [],
}


def cpu_plan(**settings: Any) -> RunPlan:
    return build_plan(model="tiny", card="cpu", **settings)


def measured(plan: RunPlan, *found: dict[str, Any], by: RunPlan | None = None) -> RunPlan:
    return with_probes(plan, [probe_record(by or plan, each) for each in found])


def test_plan_takes_the_best_size_of_each_precision_and_says_when():
    plan = measured(cpu_plan(), FOUND)
    assert plan.hw.measured is not None
    assert plan.hw.measured.matmul_flops_per_second == {"fp32": 120e9, "bf16": 300e9}
    assert plan.hw.measured.as_of == "2026-11-30"
    assert plan.hw.disk_bytes_per_second == 200e6
    assert plan.provenance["hw.disk_bytes_per_second"] == "measured by action=calibrate on 2026-11-30"


def test_measured_rates_replace_listed_ones_in_the_step():
    plan = measured(cpu_plan(precision=Precision.fp32), FOUND)
    rates = card_rates(plan.hw, Precision.fp32, CPU)
    assert rates is not None
    assert rates.matmul_flops_per_second == pytest.approx(CPU.sustained_fraction * 120e9)
    assert rates.bytes_per_second == 12e9
    shared = replace(plan.hw, n_gpus_per_node=2)
    halves = card_rates(shared, Precision.fp32, CPU)
    assert halves is not None
    assert halves.bytes_per_second == 6e9


def test_pure_bf16_multiplies_at_the_rate_of_bf16():
    plan = measured(cpu_plan(), FOUND)
    pure, mixed = (card_rates(plan.hw, precision, CPU) for precision in (Precision.bf16_pure, Precision.bf16))
    assert pure is not None
    assert mixed is not None
    assert pure.matmul_flops_per_second == mixed.matmul_flops_per_second


def test_frozen_plan_gives_the_same_bill_without_the_probes():
    plan = measured(cpu_plan(), FOUND)
    again = from_jsonable(RunPlan, json.loads(json.dumps(to_jsonable(plan))))
    assert estimate_step_time(again) == estimate_step_time(plan)


def test_newest_measurement_counts_and_what_it_lacks_comes_from_older_ones():
    two_ranks = FOUND | {"n_ranks": 2, "bus_bytes_per_second": 1.2e9, "bus_latency_seconds": 1e-4}
    later = FOUND | {"n_ranks": 1, "bandwidth_bytes_per_second": 9e9, "disk_write_bytes_per_second": None}
    plan = measured(cpu_plan(n_gpus=2), two_ranks, later)
    assert plan.hw.measured is not None
    assert plan.hw.measured.bandwidth_bytes_per_second == 9e9
    assert plan.hw.measured.disk_write_bytes_per_second == 200e6
    assert plan.hw.measured.bus_bytes_per_second == 1.2e9
    assert fabric(plan.hw).bus_bytes_per_second == 1.2e9
    alone = measured(cpu_plan(), two_ranks)
    assert alone.hw.measured is not None
    assert alone.hw.measured.bus_bytes_per_second is None


@pytest.mark.parametrize(
    "other",
    [
        replace(cpu_plan(), software=replace(cpu_plan().software, torch="2.12.0")),
        replace(cpu_plan(), hw=replace(cpu_plan().hw, n_cpu_cores=64)),
        replace(cpu_plan(), hw=replace(cpu_plan().hw, card=replace(cpu_plan().hw.card, label="another CPU"))),
        build_plan(),
    ],
    ids=["torch", "cores", "processor", "card"],
)
def test_another_machine_is_not_this_one(other: RunPlan):
    assert measured(other, FOUND, by=cpu_plan()) == other


def test_build_of_the_same_torch_release_is_the_same():
    cpu_build = replace(cpu_plan(), software=replace(cpu_plan().software, torch="2.13.0+cpu"))
    assert measured(cpu_build, FOUND, by=cpu_plan()).hw.measured is not None


def test_card_of_the_catalog_takes_its_rates_but_not_the_host_around_it():
    here = build_plan()
    here = replace(here, hw=replace(here.hw, detected=True, n_cpu_cores=16))
    elsewhere = build_plan()
    plan = measured(elsewhere, FOUND, by=here)
    assert plan.hw.measured is not None
    assert plan.hw.measured.bandwidth_bytes_per_second == 12e9
    assert plan.hw.measured.layer_seconds is None
    assert plan.hw.disk_bytes_per_second is None


def test_disk_of_other_folders_says_nothing():
    plan = measured(replace(cpu_plan(), runs_dir="/elsewhere"), FOUND, by=cpu_plan())
    assert plan.hw.disk_bytes_per_second is None
    assert plan.hw.measured is not None


def test_card_that_nobody_listed_has_a_time_once_it_is_measured():
    """An unknown card: no rate, no time; after a matmul and a copy there is a step, and still no MFU."""
    unknown = replace(RTX_4090, name="newcomer", peak_flops_per_second={}, bandwidth_bytes_per_second=None)
    plan = build_plan(card=unknown)
    assert estimate_step_time(plan).seconds is None
    step = estimate_step_time(measured(plan, FOUND))
    assert step.seconds is not None
    assert step.mfu is None
    assert card_rates(plan.hw, Precision.bf16, CUDA) is None


@pytest.mark.parametrize("damage", [float("nan"), -1.0, 0.0, 1e30, "fast", None, True])
def test_damaged_number_counts_for_nothing(damage: object):
    plan = measured(cpu_plan(), FOUND | {"bandwidth_bytes_per_second": damage})
    assert plan.hw.measured is not None
    assert plan.hw.measured.bandwidth_bytes_per_second is None


def test_record_of_another_shape_is_passed_over():
    record = probe_record(cpu_plan(), FOUND)
    for broken in ({**record, "machine": {}}, {**record, "found": {"matmul": [{}]}}, {**record, "machine": None}):
        assert with_probes(cpu_plan(), [broken]).hw.measured is None


def test_probes_stand_beside_the_ledger_and_torn_lines_are_left_out(tmp_path: Path):
    assert read_probes(tmp_path) == ()
    line = json.dumps(probe_record(cpu_plan(), FOUND))
    (tmp_path / "probes.jsonl").write_text(f'{line}\n{line[:40]}\n[]\n{{"schema_version": 9}}\n{line}\n')
    assert len(read_probes(tmp_path)) == 2
    assert len(read_probes(tmp_path / "ledger.jsonl")) == 2


def test_every_measured_field_has_a_scope():
    from preflight.calibration import probes

    scopes = (probes.OF_THE_CARD, probes.OF_THE_HOST, probes.OF_THE_DISK, probes.OF_THE_LINKS)
    named = {name for names in scopes for name in names} | {"as_of", "matmul_flops_per_second"}
    assert named == set(Measured.__dataclass_fields__)


@pytest.mark.parametrize(("rate", "said"), [(1.12e9, "1,120 MB/s"), (248.4e6, "248 MB/s"), (1e5, "0.1 MB/s")])
def test_probe_lines_say_a_rate_in_plain_digits(make_plan, rate, said):
    (row,) = [
        line
        for line in probe_lines(make_plan().hw, FOUND | {"disk_read_bytes_per_second": rate}, 60.0)
        if line.startswith("disk, read")
    ]
    assert row.split("   ")[-2].strip() == said
