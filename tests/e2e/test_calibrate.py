"""`action=calibrate` as it stands in the README, with its own processes: measured, taken to heart, within its time."""

import json

import pytest

from tests.e2e.conftest import SMALL, Desk


@pytest.mark.slow
def test_calibration_measures_this_machine_and_the_next_bill_says_so(desk: Desk) -> None:
    done = desk.launch(*SMALL, "action=calibrate", "report=json", "calibrate.max_seconds=20", "calibrate.max_steps=6",
                       "tracking=none", "hw=2xcpu")  # fmt: skip
    assert done.code == 0, done.err
    document = done.document
    assert document["found"]["bus_bytes_per_second"] > 0
    assert document["found"]["disk_write_bytes_per_second"] > 0
    assert {row["precision"] for row in document["found"]["matmul"]} >= {"fp32"}
    if document["why_no_steps"] is None:  # a machine that is busy may have had no time for them
        assert document["actual"]["actual/n_steps_done"] >= 2
        assert "calibrated" in document["after"]["step_seconds"]["source"]
    (probe,) = (desk.folder / "runs" / "probes.jsonl").read_text().splitlines()
    assert json.loads(probe)["found"] == document["found"]
    assert list((desk.folder / "runs").glob("*/checkpoints")) == []
    bill = desk.launch(*SMALL, "dry_run=true", "tracking=none", "hw=2xcpu")
    assert "measured by action=calibrate on" in " ".join(bill.out.split())
