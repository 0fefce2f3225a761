"""Text to token files: whole or not at all, the same on every machine."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conf.choices import DataKind, Tokenizer
from preflight.dataset import read_manifest, sha256_of_file
from preflight.errors import ConfigError
from preflight.plan import RunPlan
from trainers import prepare as module
from trainers.prepare import Corpus, cut, encoder, ensure_prepared, prepare, stdlib_corpus, text_corpus


def quiet(_: str) -> None:
    """Nobody listens."""


@pytest.fixture
def novel(tmp_path: Path) -> Path:
    path = tmp_path / "novel.txt"
    path.write_text("".join(f"line {i}\n" for i in range(1000)))
    return path


def test_prepare_writes_every_byte_once_and_holds_the_end_out(novel: Path, tmp_path: Path):
    folder = tmp_path / "data" / "novel"
    manifest = prepare(text_corpus("novel", novel), folder, tokenizer=Tokenizer.byte, val_fraction=0.1, say=quiet)
    train, val = (np.fromfile(folder / name, dtype="<u2") for name in ("train.bin", "val.bin"))
    text = novel.read_bytes()
    assert bytes(np.concatenate([train, val]).astype(np.uint8)) == text
    assert (manifest.n_train_tokens, manifest.n_val_tokens) == (len(train), len(val))
    assert len(val) == pytest.approx(0.1 * len(text), abs=10)
    assert bytes(val[:5].astype(np.uint8)) == b"line "
    assert manifest.sha256 == {name: sha256_of_file(folder / name) for name in ("train.bin", "val.bin")}
    assert (manifest.vocab_size, manifest.dtype, manifest.source) == (256, "uint16", str(novel))
    assert read_manifest(folder) == manifest
    assert [path.name for path in folder.parent.iterdir()] == ["novel"]  # no leftovers


def test_prepare_lets_one_of_two_at_once_win(novel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "novel"
    both_are_ready = threading.Barrier(2)
    put_in_place = module.put_in_place
    monkeypatch.setattr(module, "put_in_place", lambda *a: both_are_ready.wait(10) is None or put_in_place(*a))
    manifests = []

    def launch() -> None:
        manifests.append(
            prepare(text_corpus("novel", novel), folder, tokenizer=Tokenizer.byte, val_fraction=0.1, say=quiet)
        )

    threads = [threading.Thread(target=launch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert manifests[0] == manifests[1] == read_manifest(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["novel", "novel.txt"]


def test_prepare_leaves_a_folder_of_the_users_alone(novel: Path, tmp_path: Path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "letters.txt").write_text("dear")
    with pytest.raises(ConfigError, match=r"in the way(.|\n)*data.dir=ELSEWHERE"):
        prepare(text_corpus("mine", novel), folder, tokenizer=Tokenizer.byte, val_fraction=0.1, say=quiet)
    assert [path.name for path in folder.iterdir()] == ["letters.txt"]


def test_prepare_refuses_before_it_writes_when_the_disk_is_too_small(
    novel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(ConfigError, match=r"up to 17 KiB, 1 KiB are free"):
        prepare(text_corpus("novel", novel), tmp_path / "data", tokenizer=Tokenizer.byte, val_fraction=0.1, say=quiet)
    assert not (tmp_path / "data").exists()


def test_text_corpus_of_a_folder_leaves_out_hidden_and_binary_files_and_ignores_where_it_lies(tmp_path: Path):
    orders = []
    for root in (tmp_path / "one", tmp_path / "two"):
        (root / "sub").mkdir(parents=True)
        (root / ".git").mkdir()
        for name in ("a.txt", "b.md", "sub/c.py", ".git/config"):
            (root / name).write_text(name)
        (root / "image.png").write_bytes(b"\x89PNG\0\0")
        (root / "empty.txt").touch()
        orders.append([path.relative_to(root).as_posix() for path in text_corpus("x", root).paths])
    assert sorted(orders[0]) == ["a.txt", "b.md", "sub/c.py"]
    assert orders[0] == orders[1]


def test_text_corpus_says_what_is_missing(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"data.path=.*nowhere: does not exist"):
        text_corpus("x", tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no text file there"):
        text_corpus("x", tmp_path)


def test_stdlib_corpus_has_megabytes_of_python_without_tests_and_packages():
    corpus = stdlib_corpus()
    assert corpus.n_bytes() > 5e6
    assert {path.suffix for path in corpus.paths} == {".py"}
    assert not [path for path in corpus.paths if {"site-packages", "test", "tests"} & set(path.parts)]
    assert corpus.paths == stdlib_corpus().paths


def test_corpus_pieces_end_at_lines_and_leave_nothing_out(novel: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 100)
    pieces = list(Corpus(name="x", source="", paths=(novel,)).pieces())
    assert b"".join(pieces) == novel.read_bytes()
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert max(map(len, pieces)) < 120


def test_prepare_says_how_far_it_is(novel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "REPORT_INTERVAL_SECONDS", -1.0)
    said: list[str] = []
    folder = tmp_path / "d"
    prepare(text_corpus("novel", novel), folder, tokenizer=Tokenizer.byte, val_fraction=0.1, say=said.append)
    assert said[0].startswith("preparing novel: 9 KiB of 9 KiB")
    assert said[-1] == f"prepared {folder}: 8,008 training and 882 held-out tokens"  # 8,890 x 0.9 falls into a line


def test_cut_splits_the_piece_on_the_border_at_a_line():
    pieces = [b"aa\nbb\n", b"cc\ndd\n", b"ee\n"]
    assert list(cut(iter(pieces), 7)) == [(False, b"aa\nbb\n"), (False, b"cc\n"), (True, b"dd\n"), (True, b"ee\n")]


def test_encoder_knows_bytes_and_refuses_foreign_tokenizers():
    encode, vocab_size = encoder(Tokenizer.byte)
    assert encode("é".encode()).tolist() == [0xC3, 0xA9]
    assert vocab_size == 256
    with pytest.raises(ConfigError, match=r"data=bin data.path=FOLDER"):
        encoder(Tokenizer.other)


def test_ensure_prepared_prepares_the_users_text_once(
    novel: Path, tmp_path: Path, make_plan: Callable[..., RunPlan], monkeypatch: pytest.MonkeyPatch
):
    plan = make_plan(model="tiny", card="cpu", sequence_length=128)
    data = replace(
        plan.data, kind=DataKind.text, source_path=str(novel), dir=str(tmp_path / "d"), prepared=False,
        n_train_tokens=None, n_val_tokens=None, dtype=None,
    )  # fmt: skip
    prepared = ensure_prepared(replace(plan, data=data), quiet)
    assert (prepared.prepared, prepared.dtype) == (True, "uint16")
    assert prepared.n_train_tokens == pytest.approx(8001, abs=10)
    monkeypatch.setattr(module, "prepare", None)
    assert ensure_prepared(replace(plan, data=data), quiet) == prepared


def test_ensure_prepared_names_the_command_for_what_takes_hours(tmp_path: Path, make_plan: Callable[..., RunPlan]):
    plan = make_plan()
    data = replace(plan.data, kind=DataKind.openwebtext, dir=str(tmp_path / "openwebtext"), prepared=False)
    with pytest.raises(ConfigError, match=r"not prepared(.|\n)*scripts/prepare_data.py openwebtext --dir"):
        ensure_prepared(replace(plan, data=data), quiet)


def test_ensure_prepared_counts_token_files_without_a_manifest(tmp_path: Path, make_plan: Callable[..., RunPlan]):
    for name, n in (("train.bin", 100), ("val.bin", 10)):
        np.zeros(n, dtype=np.uint16).tofile(tmp_path / name)
    plan = make_plan(sequence_length=8)
    data = replace(plan.data, kind=DataKind.bin, dir=str(tmp_path), prepared=False, dtype=None)
    prepared = ensure_prepared(replace(plan, data=data), quiet)
    assert (prepared.n_train_tokens, prepared.n_val_tokens, prepared.dtype) == (100, 10, "uint16")


def test_prepare_clears_what_killed_ones_left_a_day_ago_and_leaves_the_living_alone(novel: Path, tmp_path: Path):
    folder = tmp_path / "data"
    for name, age_hours in ((".data.7.tmp", 30), (f".data.{os.getpid()}.tmp", 1), (".other.7.tmp", 30)):
        left = tmp_path / name / "data"
        left.mkdir(parents=True)
        (left / "train.bin").touch()
        then = time.time() - age_hours * 3600
        for path in (left / "train.bin", left, left.parent):
            os.utime(path, (then, then))
    prepare(text_corpus("novel", novel), folder, tokenizer=Tokenizer.byte, val_fraction=0.1, say=quiet)
    assert {path.name for path in tmp_path.glob(".*")} == {f".data.{os.getpid()}.tmp", ".other.7.tmp"}
    (tmp_path / "usual").mkdir()
    assert folder.stat().st_mode == (tmp_path / "usual").stat().st_mode  # others may read it


def text_plan(make_plan: Callable[..., RunPlan], source: Path, folder: Path) -> RunPlan:
    plan = make_plan(model="tiny", card="cpu", sequence_length=128)
    return replace(plan, data=replace(plan.data, kind=DataKind.text, dir=str(folder), source_path=str(source)))


def test_ensure_prepared_names_the_file_that_cannot_be_read(
    make_plan: Callable[..., RunPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, novel: Path
):
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(module, "_is_binary", refuse)
    with pytest.raises(ConfigError, match=r"data.path=.*: Permission denied: .*novel.txt\n  To fix: data.path="):
        ensure_prepared(text_plan(make_plan, novel.parent, tmp_path / "data"), quiet)


def test_ensure_prepared_names_the_place_that_cannot_be_written(
    make_plan: Callable[..., RunPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, novel: Path
):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_tokens", refuse)
    with pytest.raises(ConfigError, match=r"data.dir=.*: No space left on device\n  To fix: data.dir=ELSEWHERE"):
        ensure_prepared(text_plan(make_plan, novel, tmp_path / "data"), quiet)
    assert not list(tmp_path.glob(".data*"))
