"""Full disks, closed pipes, two launchers in one folder, grids that are interrupted: nothing is lost, nothing hangs."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable

import psutil

from tests.e2e.conftest import Desk, Finished
from tests.e2e.test_ranks import wait_for_steps

Overrides = Callable[..., tuple[str, ...]]


def test_closed_pipe_does_not_end_the_training(desk: Desk, small: Overrides) -> None:
    arguments = desk.arguments(*small("trainer.log_interval=1", n_steps=60))
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=desk.folder, env=desk.environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()  # as `| head -1` does
    assert process.wait(timeout=120) == 0
    assert desk.ledger()[0]["actual"]["actual/n_steps_done"] == 60


def test_folder_in_use_is_not_resumed_a_second_time(desk: Desk, small: Overrides) -> None:
    overrides = small("trainer.log_interval=1", "trainer.checkpoint_interval=2", n_steps=100_000)
    process = desk.start(*desk.arguments(*overrides))
    wait_for_steps(desk, psutil.Process(process.pid), n_lines=6)
    second = desk.frozen(f"resume={desk.run_dirs()[0]}")
    assert second.code == 2
    assert f"process {process.pid} is training there" in second.err
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143


def test_runs_dir_that_is_a_file_is_left_alone(desk: Desk) -> None:
    precious = desk.folder / "precious.txt"
    precious.write_text("mine")
    done = desk.run(*desk.arguments("dry_run=true")[:1], f"runs_dir={precious}", "model=tiny")
    assert done.code == 2
    assert precious.read_text() == "mine"


def test_grid_runs_its_rows_and_tells_them_in_one_document(desk: Desk, small: Overrides) -> None:
    done = desk.launch("-m", *small("seed=1,2", "report=json", n_steps=5))
    assert done.code == 0, done.err
    assert [row["actual"]["n_steps_done"] for row in done.document["rows"]] == [5, 5]
    assert len(desk.ledger()) == 2


def test_interrupted_grid_stops_with_its_row(desk: Desk, small: Overrides) -> None:
    process = desk.start(*desk.arguments("-m", *small("seed=1,2", "trainer.log_interval=1", n_steps=100_000)))
    grid = psutil.Process(process.pid)
    wait_for_steps(desk, grid)
    everyone = grid.children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "1 rows of the grid were not started" in err
    _, alive = psutil.wait_procs(everyone, timeout=5)
    assert not alive
    assert len(desk.run_dirs()) == 1


def test_cut_short_measurements_do_not_keep_a_run_from_being_resumed(desk: Desk, small: Overrides) -> None:
    process = desk.start(*desk.arguments(*small("trainer.log_interval=1", n_steps=400)))
    wait_for_steps(desk, psutil.Process(process.pid))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    (run_dir,) = desk.run_dirs()
    (run_dir / "actual.json").write_text("")
    done = desk.frozen("resume=latest")
    assert done.code == 0, done.err
    assert json.loads((run_dir / "actual.json").read_text())["actual"]["n_steps_done"] == 400


def test_edited_plan_that_breaks_the_global_batch_is_refused(desk: Desk, finished: Finished) -> None:
    document = json.loads((finished.run_dir / "plan.json").read_text())
    document["asked_plan"]["trainer"]["grad_accum_steps"] = 99
    edited = desk.folder / "edited.json"
    edited.write_text(json.dumps(document))
    done = desk.frozen(f"plan={edited}", "dry_run=true")
    assert done.code == 2
    assert "tokens_per_step=256, its passes make" in done.err


WITH_SMALL_FILES = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_plan_that_the_disk_refuses_is_the_systems_fault(desk: Desk, small: Overrides) -> None:
    done = desk.run("-c", WITH_SMALL_FILES, *desk.arguments(*small()))
    assert done.code == 4
    assert "the system refuses: [Errno 27] File too large" in done.err
    assert "To fix: free space, or runs_dir=" in done.err


WITHOUT_ITS_FOLDER = """
import os, sys
os.environ["PYTHONSAFEPATH"] = "1"
del os.environ["PYTHONPATH"]
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_python_that_leaves_the_programs_folder_out_finds_its_packages(desk: Desk, small: Overrides) -> None:
    done = desk.run("-c", WITHOUT_ITS_FOLDER, *desk.arguments(*small(n_steps=2)))
    assert done.code == 0, done.err
