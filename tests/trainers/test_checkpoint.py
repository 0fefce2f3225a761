"""Can a checkpoint be trusted after whatever happened to it?"""

# ruff: noqa: TID253 - torch is what is tested here
from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
import torch

from preflight.errors import TrainingFailed
from trainers import checkpoint


def state(value: float = 1.0) -> dict[str, object]:
    return {"model": {"weight": torch.full((50, 50), value)}, "plan": "{}"}


def save(run_dir: Path, *steps: int, keep: int = 5) -> None:
    for step in steps:
        checkpoint.save(run_dir, step, state(float(step)), keep)


def test_save_keeps_the_newest_and_leaves_nothing_half_written(tmp_path: Path):
    save(tmp_path, 5, 10, 100, keep=2)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step_00000010.pt", "step_00000100.pt"]


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


def harmful(path: Path) -> None:
    torch.save({"format": checkpoint.FORMAT, "run": os.system}, path)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (truncate, "cut short"),
        (flip_a_bit_of_a_weight, "does not match its checksum"),
        (another_program, "not a checkpoint of ours"),
        (harmful, "not a checkpoint of ours"),
        (lambda path: path.write_text("hello"), "cut short or not a checkpoint"),
        (lambda path: path.write_bytes(b""), "cut short or not a checkpoint"),
    ],
)
def test_find_latest_names_and_passes_over_what_is_not_sound(tmp_path: Path, harm, words: str):
    save(tmp_path, 1, 2)
    newest = checkpoint.path_of(tmp_path, 2)
    harm(newest)
    path, passed_over = checkpoint.find_latest(tmp_path)
    assert path == checkpoint.path_of(tmp_path, 1)
    assert len(passed_over) == 1
    assert str(newest) in passed_over[0]
    assert words in passed_over[0]


def test_save_keeps_the_previous_one_and_says_what_it_needs_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    save(tmp_path, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrainingFailed, match=r"step 2 .*No space left.* needs 10 KiB") as caught:
        save(tmp_path, 2)
    assert f"resume={tmp_path}" in str(caught.value)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_00000001.pt"]
