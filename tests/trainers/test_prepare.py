"""Text to token files: whole or not at all, the same on every machine."""

from __future__ import annotations

import errno
import json
import os
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conf.choices import DataKind
from preflight.dataset import read_manifest, sha256_of_file
from preflight.errors import ConfigError
from preflight.plan import RunPlan
from trainers import corpus as corpus_module
from trainers import prepare as module
from trainers.corpus import Corpus, Piece, Place, text_corpus
from trainers.encoders import BYTES
from trainers.prepare import cut, ensure_prepared, prepare
from trainers.threads import in_order


def quiet(_: str) -> None:
    """Nobody listens."""


@pytest.fixture
def novel(tmp_path: Path) -> Path:
    path = tmp_path / "novel.txt"
    path.write_text("".join(f"line {i}\n" for i in range(1000)))
    return path


def test_prepare_writes_every_byte_once_and_holds_the_end_out(novel: Path, tmp_path: Path):
    folder = tmp_path / "data" / "novel"
    manifest = prepare(text_corpus("novel", novel), folder, BYTES, val_fraction=0.1, say=quiet)
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


def test_prepare_lets_the_second_of_two_wait_for_the_first(novel: Path, tmp_path: Path):
    folder = tmp_path / "novel"
    first_writes, second_waits = threading.Event(), threading.Event()
    manifests, said = [], []

    def hear(line: str) -> None:
        said.append(line)
        if "waiting for it" in line:
            second_waits.set()

    class Slow(Corpus):
        def pieces(self, start: Place = (0, 0)) -> Iterator[Piece]:
            first_writes.set()
            assert second_waits.wait(10)
            yield from Corpus.pieces(self, start)

    def launch(kind: type[Corpus]) -> None:
        corpus = kind(name="novel", source="", paths=(novel,))
        manifests.append(prepare(corpus, folder, BYTES, val_fraction=0.1, say=hear))

    threads = [threading.Thread(target=launch, args=(kind,)) for kind in (Slow, Corpus)]
    threads[0].start()
    assert first_writes.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert manifests[0] == manifests[1] == read_manifest(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["novel", "novel.txt"]
    assert sum("prepared" in line for line in said) == 1


class KilledError(Exception):
    """What a test raises where a signal would strike."""


@pytest.mark.parametrize("at", [1, 12, 21])
def test_prepare_goes_on_where_it_was_killed(novel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int):
    """The files are those of an undisturbed preparation, and no piece that was written is read again."""
    monkeypatch.setattr(corpus_module, "PIECE_BYTES", 400)
    monkeypatch.setattr(module, "SAVE_INTERVAL_SECONDS", -1.0)
    whole = prepare(text_corpus("novel", novel), tmp_path / "whole", BYTES, val_fraction=0.1, say=quiet)
    folder, read = tmp_path / "d", []

    class Watched(Corpus):
        def pieces(self, start: Place = (0, 0)) -> Iterator[Piece]:
            for piece in Corpus.pieces(self, start):
                read.append(piece.after)
                if len(read) == at:
                    raise KilledError
                yield piece

    corpus = Watched(name="novel", source=whole.source, paths=(novel,))
    with pytest.raises(KilledError):
        prepare(corpus, folder, BYTES, val_fraction=0.1, say=quiet)
    with (tmp_path / ".d.unfinished" / "train.bin").open("ab") as file:
        file.write(b"torn")
    said: list[str] = []
    manifest = prepare(corpus, folder, BYTES, val_fraction=0.1, say=said.append)
    assert manifest.sha256 == whole.sha256
    assert read == sorted(read)
    assert len(read) == len(set(read)) + 1  # the one at which it was killed
    assert any("going on" in line for line in said) is (at > 1)
    assert not list(tmp_path.glob(".d*"))


def test_prepare_starts_anew_when_the_text_has_changed(novel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    work = tmp_path / ".d.unfinished"
    work.mkdir()
    done = {"key": "another text", "place": [0, 50], "n_units": 50, "n_train_bytes": 100, "n_val_bytes": 0}
    (work / "progress.json").write_text(json.dumps(done))
    (work / "train.bin").write_bytes(bytes(100))
    manifest = prepare(text_corpus("novel", novel), tmp_path / "d", BYTES, val_fraction=0.1, say=quiet)
    assert manifest.n_train_tokens + manifest.n_val_tokens == novel.stat().st_size


def test_prepare_uses_bounded_memory(tmp_path: Path):
    """50 MiB of text, of which a few pieces are there at a time."""
    path = tmp_path / "large.txt"
    path.write_bytes(b"0123456789abcde\n" * (50 * 2**16))
    tracemalloc.start()
    prepare(text_corpus("large", path), tmp_path / "d", BYTES, val_fraction=0.1, say=quiet)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * 2**20


def test_prepare_leaves_a_folder_of_the_users_alone(novel: Path, tmp_path: Path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "letters.txt").write_text("dear")
    with pytest.raises(ConfigError, match=r"in the way(.|\n)*data.dir=ELSEWHERE"):
        prepare(text_corpus("mine", novel), folder, BYTES, val_fraction=0.1, say=quiet)
    assert [path.name for path in folder.iterdir()] == ["letters.txt"]


def test_prepare_refuses_before_it_writes_when_the_disk_is_too_small(
    novel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(ConfigError, match=r"up to 17 KiB, 1 KiB are free"):
        prepare(text_corpus("novel", novel), tmp_path / "data", BYTES, val_fraction=0.1, say=quiet)
    assert not (tmp_path / "data").exists()


def test_prepare_says_how_far_it_is(novel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "REPORT_INTERVAL_SECONDS", -1.0)
    said: list[str] = []
    folder = tmp_path / "d"
    prepare(text_corpus("novel", novel), folder, BYTES, val_fraction=0.1, say=said.append)
    assert said[0].startswith("preparing novel: 9 KiB of 9 KiB")
    assert said[-1] == f"prepared {folder}: 8,008 training and 882 held-out tokens"  # 8,890 x 0.9 falls into a line


def running(text: bytes) -> Piece:
    return Piece(texts=[text], are_documents=False, n_units=len(text), after=(0, 0))


def test_cut_splits_running_text_at_a_line_and_keeps_documents_whole():
    assert list(cut(running(b"cc\ndd\n"), 9)) == [(False, [b"cc\ndd\n"])]
    assert list(cut(running(b"cc\ndd\n"), 1)) == [(False, [b"cc\n"]), (True, [b"dd\n"])]
    assert list(cut(running(b"cc\ndd\n"), -3)) == [(True, [b"cc\ndd\n"])]
    documents = Piece(texts=[b"a", b"b", b"c", b"d"], are_documents=True, n_units=40, after=(0, 0))
    assert list(cut(documents, 30)) == [(False, [b"a", b"b", b"c"]), (True, [b"d"])]
    assert list(cut(documents, 99)) == [(False, [b"a", b"b", b"c", b"d"])]


def test_in_order_keeps_the_order_and_reads_only_a_little_ahead():
    n_read, n_out = 0, 0

    def items() -> Iterator[int]:
        nonlocal n_read
        for i in range(200):
            n_read += 1
            yield i

    for result in in_order(lambda i: 2 * i, items(), is_worth_threads=True):
        assert result == 2 * n_out
        n_out += 1
        assert n_read - n_out <= 2 * (os.cpu_count() or 1) + 1
    assert n_out == 200


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


def test_prepared_folders_may_be_read_by_others(novel: Path, tmp_path: Path):
    prepare(text_corpus("novel", novel), tmp_path / "data", BYTES, val_fraction=0.1, say=quiet)
    (tmp_path / "usual").mkdir()
    assert (tmp_path / "data").stat().st_mode == (tmp_path / "usual").stat().st_mode


def text_plan(make_plan: Callable[..., RunPlan], source: Path, folder: Path) -> RunPlan:
    plan = make_plan(model="tiny", card="cpu", sequence_length=128)
    return replace(plan, data=replace(plan.data, kind=DataKind.text, dir=str(folder), source_path=str(source)))


def test_ensure_prepared_names_the_file_that_cannot_be_read(
    make_plan: Callable[..., RunPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, novel: Path
):
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(corpus_module, "is_binary", refuse)
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
