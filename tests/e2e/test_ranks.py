"""Several ranks: launch.py starts torchrun, or torchrun starts launch.py.

That the training is the same is shown with the commands of the README, which are these three: test_readme.py.
"""

import json
import sys
from pathlib import Path

import psutil

from tests.e2e.conftest import ROOT, Desk

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


def curve(run_dir: Path) -> list[float]:
    rows = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [row["train/loss"] for row in rows if "train/loss" in row]


def test_configuration_error_under_torchrun_ends_all_ranks(desk: Desk) -> None:
    done = desk.run(*TORCHRUN, *desk.arguments("modle=tiny"), timeout=60)
    assert done.code != 0
    assert done.err.count("modle=tiny:") == 1
    assert not desk.runs.exists()


def test_dry_run_under_torchrun_prints_one_bill(desk: Desk) -> None:
    done = desk.run(*TORCHRUN, *desk.arguments("dry_run=true", "report=json"), timeout=60)
    assert done.code == 0, done.err
    assert done.document["plan"]["hw"]["world_size"] == 2


def wait_for_steps(desk: Desk, process: psutil.Process, n_lines: int = 2) -> None:
    for _ in range(600):
        if any(len(path.read_text().splitlines()) >= n_lines for path in desk.runs.glob("*/metrics.jsonl")):
            return
        assert process.is_running()
        psutil.wait_procs([process], timeout=0.1)
    raise AssertionError("no step within a minute")


def test_no_fixed_port_is_used() -> None:
    from trainers.backends import local

    source = Path(local.__file__).read_text()
    assert "--standalone" in source
    assert "29500" not in source
    assert sys.executable
    assert ROOT.is_dir()
