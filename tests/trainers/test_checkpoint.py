"""Can a checkpoint be trusted after whatever happened to it?"""

# ruff: noqa: TID253 - torch is what is tested here
from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from trainers import checkpoint


def state(value: float = 1.0, **more: object) -> dict[str, object]:
    plan = json.dumps({"model": {"n_layer": 2, "n_embd": 50}})
    return {"model": {"weight": torch.full((50, 50), value)}, "plan": plan, **more}


def save(run_dir: Path, *steps: int, keep: int = 5) -> None:
    for step in steps:
        checkpoint.save(run_dir, step, state(float(step)), keep=keep)


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_save_keeps_the_newest_and_leaves_nothing_half_written(tmp_path: Path):
    save(tmp_path, 5, 10, 100, keep=2)
    assert names(tmp_path) == ["step_00000010.pt", "step_00000100.pt"]


def test_save_keeps_the_best_of_those_that_were_evaluated(tmp_path: Path):
    losses = {1: 3.0, 2: 1.5, 3: 2.0, 4: float("nan"), 5: 1.9}
    for step, loss in losses.items():
        checkpoint.save(tmp_path, step, state(val_loss=loss, val_step=step), keep=1, keep_best=True)
    checkpoint.save(tmp_path, 6, state(val_loss=0.1, val_step=5), keep=1, keep_best=True)  # a loss of older weights
    assert names(tmp_path) == ["best.json", "step_00000002.pt", "step_00000006.pt"]
    assert checkpoint.best_step(tmp_path) == 2
    checkpoint.save(tmp_path, 7, state(val_loss=1.4, val_step=7), keep=1, keep_best=True)
    assert names(tmp_path) == ["best.json", "step_00000007.pt"]


def test_save_lets_go_of_nothing_for_a_file_that_claims_to_be_newer(tmp_path: Path):
    save(tmp_path, 1, 2)
    checkpoint.path_of(tmp_path, 99).write_text("foreign")
    (tmp_path / "checkpoints" / "step_backup.pt").write_text("the user's")
    save(tmp_path, 3, keep=1)
    assert names(tmp_path) == ["step_00000003.pt", "step_00000099.pt", "step_backup.pt"]
    assert checkpoint.find_latest(tmp_path)[0] == checkpoint.path_of(tmp_path, 3)


def test_find_latest_takes_the_newest(tmp_path: Path):
    save(tmp_path, 9, 10)
    path, passed_over = checkpoint.find_latest(tmp_path)
    assert path == checkpoint.path_of(tmp_path, 10)
    assert passed_over == ()
    assert checkpoint.load(path)["model"]["weight"][0, 0] == 10


def test_find_latest_finds_nothing_in_a_new_run(tmp_path: Path):
    assert checkpoint.find_latest(tmp_path) == (None, ())


def truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)


def flip_a_bit_of_a_weight(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        info = max(archive.infolist(), key=lambda info: info.file_size)
    data = bytearray(path.read_bytes())
    data[info.header_offset + 5000] ^= 1  # beyond the local header, in the middle of the tensor
    path.write_bytes(bytes(data))


def another_program(path: Path) -> None:
    torch.save({"model_state_dict": {}}, path)


def another_model(path: Path) -> None:
    checkpoint.save(path.parent.parent, 2, state(plan=json.dumps({"model": {"n_layer": 3, "n_embd": 50}})), keep=9)


def another_step(path: Path) -> None:
    path.write_bytes(checkpoint.path_of(path.parent.parent, 1).read_bytes())


def harmful(path: Path) -> None:
    torch.save({"format": checkpoint.FORMAT, "run": os.system}, path)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (truncate, "cut short"),
        (flip_a_bit_of_a_weight, "does not match its checksum"),
        (another_program, "not a checkpoint of ours"),
        (harmful, "not a checkpoint of ours"),
        (another_model, "of another model: n_layer 3 instead of 2"),
        (another_step, "renamed: it holds step 1"),
        (lambda path: path.write_text("hello"), "cut short or not a checkpoint"),
        (lambda path: path.write_bytes(b""), "cut short or not a checkpoint"),
    ],
)
def test_find_latest_names_and_passes_over_what_is_not_sound(tmp_path: Path, harm, words: str):
    save(tmp_path, 1, 2)
    newest = checkpoint.path_of(tmp_path, 2)
    harm(newest)
    path, passed_over = checkpoint.find_latest(tmp_path, {"n_layer": 2, "n_embd": 50, "a_field_of_tomorrow": 1})
    assert path == checkpoint.path_of(tmp_path, 1)
    assert len(passed_over) == 1
    assert str(newest) in passed_over[0]
    assert words in passed_over[0]


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path):
    """Wherever it falls: the file is refused, or what is loaded is the same to the bit."""
    save(tmp_path, 1)
    path = checkpoint.path_of(tmp_path, 1)
    whole, expected = path.read_bytes(), checkpoint.load(path)
    n_refused, generator = 0, random.Random(0)
    for _ in range(150):
        at, bit = generator.randrange(len(whole)), generator.randrange(8)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zipfile's own, of names that no longer agree
            is_refused = checkpoint.fault_of(path) is not None
        n_refused += is_refused
        if not is_refused:
            state = checkpoint.load(path)
            assert torch.equal(state["model"]["weight"], expected["model"]["weight"])
            assert (state["step"], state["plan"]) == (expected["step"], expected["plan"])
    assert n_refused > 100  # 10,000 of some 11,500 bytes are the tensor's


SAVE_ON_A_SMALL_DISK = """
import resource, signal, sys
from pathlib import Path
import torch
from preflight.errors import TrainingFailed
from trainers import checkpoint
run_dir = Path(sys.argv[1])
checkpoint.save(run_dir, 1, {"model": {"w": torch.ones(1000)}}, keep=1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    checkpoint.save(run_dir, 2, {"model": {"w": torch.ones(1_000_000)}}, keep=1)
except TrainingFailed as error:
    print(error)
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte; skipped where this user may not mount one."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip("no right to mount a small disk")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def save_on(folder: Path, *more: str) -> str:
    program = [sys.executable, "-c", SAVE_ON_A_SMALL_DISK, str(folder), *more]
    return subprocess.run(program, check=True, capture_output=True, text=True).stdout


def assert_previous_is_kept(folder: Path, said: str, words: str) -> None:
    assert said.startswith("checkpoint of step 2 was not written to")
    assert "needs 4 MiB (4,000,000 bytes)" in said
    assert words in said
    assert f"resume={folder}" in said
    assert names(folder) == ["step_00000001.pt"]
    assert checkpoint.find_latest(folder) == (checkpoint.path_of(folder, 1), ())


def test_save_keeps_the_previous_one_and_says_what_it_needs_when_the_disk_is_full(small_disk: Path):
    assert_previous_is_kept(small_disk, save_on(small_disk), "No space left on device")


def test_save_keeps_the_previous_one_and_says_what_it_needs_when_files_may_not_be_so_large(tmp_path: Path):
    assert_previous_is_kept(tmp_path, save_on(tmp_path, "limited"), "File too large")
