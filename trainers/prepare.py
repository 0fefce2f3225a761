"""From text to token files: train.bin, val.bin and their manifest, made once, whole or not at all.

Text comes a piece at a time (`trainers.corpus`), is tokenised by threads (`trainers.encoders`) and written in order, so
memory stays bounded whatever the size; the last `val_fraction` of it is held out. Everything is written to a folder
beside the place, which is renamed when it is complete. Every few seconds `progress.json` there says how far the files
are good: a preparation that is killed goes on from there, and what lies behind it is cut off. Of two launches that
prepare the same data at once one works, and the other waits and uses its files.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import numpy as np

from conf.choices import DataKind, Tokenizer
from preflight.dataset import (
    TRAIN_NAME,
    VAL_NAME,
    Manifest,
    folder_problems,
    is_in_the_way,
    manifest_of_foreign_files,
    option_of,
    prepare_command,
    read_manifest,
    sha256_of_file,
    smallest_dtype,
    write_manifest,
)
from preflight.errors import ConfigError, Problem
from preflight.plan import DataPlan, RunPlan
from preflight.units import format_bytes, format_seconds
from trainers.corpus import Corpus, DatasetCorpus, Piece, Place, in_one_line, stdlib_corpus, text_corpus
from trainers.encoders import Encoder, Ids, encoder
from trainers.threads import in_order

PROGRESS_NAME = "progress.json"
REPORT_INTERVAL_SECONDS = 5.0
SAVE_INTERVAL_SECONDS = 2.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How far a preparation has come: what lies in the files behind these sizes does not count."""

    key: str  # of corpus, tokenizer and division
    place: Place = (0, 0)
    n_units: int = 0
    n_train_bytes: int = 0
    n_val_bytes: int = 0


def ensure_prepared(plan: RunPlan, say: Say) -> DataPlan:
    """The plan's data with its counts; what takes seconds (the standard library, the user's text) is prepared here."""
    data, folder = plan.data, Path(plan.data.dir)
    option = option_of(data.kind)
    manifest = read_manifest(folder, option)
    if manifest is None and data.kind in (DataKind.stdlib, DataKind.text):
        source = Path(data.source_path or "")
        with in_one_line("data.path", source, "data.path=FILE_OR_FOLDER that you can read"):
            is_stdlib = data.kind is DataKind.stdlib
            corpus = stdlib_corpus() if is_stdlib else text_corpus(data.name, source, data.field)
        words = encoder(plan.model.tokenizer, Path(data.tokenizer_path) if data.tokenizer_path else None)
        with in_one_line("data.dir", folder, "data.dir=ELSEWHERE, where you can write"):
            manifest = prepare(corpus, folder, words, val_fraction=data.val_fraction, say=say)
    if manifest is None:
        manifest = manifest_of_foreign_files(folder, plan.model.vocab_size, data.dtype)
    if manifest is None:
        command = prepare_command(data.kind, data.dir, plan.model.tokenizer, data.val_fraction)
        raise ConfigError(
            [Problem(path="data", value=data.kind.name, message=f"{folder} is not prepared", fix=command)]
        )
    vocab_size, length = plan.model.vocab_size, plan.trainer.sequence_length
    if faults := folder_problems(folder, manifest, vocab_size=vocab_size, sequence_length=length, option=option):
        raise ConfigError(faults)
    return replace(
        data,
        prepared=True,
        n_train_tokens=manifest.n_train_tokens,
        n_val_tokens=manifest.n_val_tokens,
        dtype=manifest.dtype,
    )


def prepare(corpus: Corpus | DatasetCorpus, folder: Path, words: Encoder, *, val_fraction: float, say: Say) -> Manifest:
    """Tokenise into a folder beside `folder`, then rename it there."""
    check_place(folder)
    dtype = smallest_dtype(words.vocab_size)
    work = folder.parent / f".{folder.name}.unfinished"
    need_bytes = int(corpus.n_text_bytes() * words.tokens_per_byte) * np.dtype(dtype).itemsize
    check_disk(folder, need_bytes - sum(path.stat().st_size for path in work.glob("*.bin")))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(work, say):
        existing = read_manifest(folder)
        if existing is not None:  # while we waited
            return existing
        work.mkdir(exist_ok=True)
        done = resume_from(work, f"{corpus.key()} {words.key} {val_fraction} {dtype}", say)
        try:
            write_tokens(corpus, work, words, done, Told(corpus, val_fraction, say), dtype)
        except OSError:  # a disk that is full is not helped by half of the tokens
            shutil.rmtree(work, ignore_errors=True)
            raise
        manifest = describe(work, corpus.name, words, dtype, corpus.source)
        (work / PROGRESS_NAME).unlink(missing_ok=True)
        say(f"prepared {folder}: {manifest.n_train_tokens:,} training and {manifest.n_val_tokens:,} held-out tokens")
        return put_in_place(work, folder, manifest)


class Told:
    """How much there is, where the held-out part begins, and every few seconds a word on how far it is."""

    def __init__(self, corpus: Corpus | DatasetCorpus, val_fraction: float, say: Say) -> None:
        self.n_units = corpus.n_units()
        self.n_train_units = int(self.n_units * (1.0 - val_fraction))
        self._name, self._say, self._shown = corpus.name, say, corpus.shown
        self._began = self._reported = time.monotonic()
        self._n_before: int | None = None

    def reached(self, n_units: int, of_this: int) -> None:
        """So far, of which so many came with the last piece."""
        now = time.monotonic()
        self._n_before = n_units - of_this if self._n_before is None else self._n_before
        if now - self._reported > REPORT_INTERVAL_SECONDS:
            self._reported = now
            pace = (now - self._began) / max(1, n_units - self._n_before)
            left = format_seconds((self.n_units - n_units) * pace)
            self._say(f"preparing {self._name}: {self._shown(n_units)} of {self._shown(self.n_units)}, {left} left")


def write_tokens(
    corpus: Corpus | DatasetCorpus, work: Path, words: Encoder, done: Done, told: Told, dtype: str
) -> None:
    """From where it stopped to the end; threads encode, this one reads and writes."""
    paths, saved_at = (work / TRAIN_NAME, work / VAL_NAME), time.monotonic()

    def tokenised(part: tuple[Piece, int]) -> tuple[Piece, list[tuple[bool, Ids]]]:
        piece, n_seen = part
        parts = cut(piece, told.n_train_units - n_seen)
        return piece, [(held, words.ids_of(texts, are_documents=piece.are_documents)) for held, texts in parts]

    with ExitStack() as stack:
        train, val = (stack.enter_context(path.open("ab")) for path in paths)
        pieces = counted(corpus.pieces(done.place), done.n_units)
        for piece, parts in in_order(tokenised, pieces, is_worth_threads=words.is_worth_threads):
            for is_held_out, ids in parts:
                (val if is_held_out else train).write(ids.astype(np.dtype(dtype).newbyteorder("<")).tobytes())
            done = replace(done, place=piece.after, n_units=done.n_units + piece.n_units)
            told.reached(done.n_units, piece.n_units)
            if time.monotonic() - saved_at > SAVE_INTERVAL_SECONDS:
                save_progress(work, done, train, val)
                saved_at = time.monotonic()
        flush(train, val)


def counted(pieces: Iterable[Piece], n_seen: int) -> Iterator[tuple[Piece, int]]:
    """Each piece, and how many units came before it."""
    for piece in pieces:
        yield piece, n_seen
        n_seen += piece.n_units


def cut(piece: Piece, n_train_units: int) -> Iterator[tuple[bool, list[bytes]]]:
    """Whether texts are held out, and the texts. A document stays whole, running text is divided at a line."""
    share = min(max(0, n_train_units), piece.n_units)
    if piece.are_documents:
        at = round(len(piece.texts) * share / piece.n_units) if piece.n_units else 0
        parts = (list(piece.texts[:at]), list(piece.texts[at:]))
    else:
        text = piece.texts[0]
        at = (text.find(b"\n", share - 1) + 1 or share) if 0 < share < len(text) else share
        parts = ([text[:at]] if at else [], [text[at:]] if text[at:] else [])
    yield from ((is_held_out, texts) for is_held_out, texts in zip((False, True), parts, strict=True) if texts)


def resume_from(work: Path, key: str, say: Say) -> Done:
    """What an earlier preparation of the same has finished; the rest is cut off."""
    done = Done(key=key)
    with suppress(FileNotFoundError, ValueError, TypeError, KeyError):  # none, or torn: from the start
        told = json.loads((work / PROGRESS_NAME).read_text())
        if told["key"] == key:
            done = Done(**{**told, "place": tuple(told["place"])})
            say(f"going on with what was prepared before: {format_bytes(done.n_train_bytes + done.n_val_bytes)}")
    for name, n_bytes in ((TRAIN_NAME, done.n_train_bytes), (VAL_NAME, done.n_val_bytes)):
        with (work / name).open("ab") as file:
            file.truncate(n_bytes)
    return done


def save_progress(work: Path, done: Done, train: BinaryIO, val: BinaryIO) -> None:
    """The tokens reach the disk before the word that they are there."""
    flush(train, val)
    temporary = work / f"{PROGRESS_NAME}.tmp"
    temporary.write_text(json.dumps(asdict(replace(done, n_train_bytes=train.tell(), n_val_bytes=val.tell()))))
    temporary.replace(work / PROGRESS_NAME)


def flush(*files: BinaryIO) -> None:
    """To the disk itself."""
    for file in files:
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def alone(work: Path, say: Say) -> Iterator[None]:
    """One preparation at a time writes there; the lock dies with its process. Windows has none."""
    lock_path = work.with_name(work.name + ".lock")
    with _locked(lock_path, say):
        try:
            yield
        finally:
            if not work.exists():  # it is in its place, or given up
                lock_path.unlink(missing_ok=True)


def _locked(path: Path, say: Say) -> BinaryIO:
    """The file that is there when the lock is ours: who had it before may have removed the one that we waited for."""
    while True:
        lock = path.open("wb")
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            return lock
        except BlockingIOError:
            say(f"another process is preparing {path.parent}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                return lock
        lock.close()


def describe(folder: Path, name: str, words: Encoder, dtype: str, source: str) -> Manifest:
    """Count and hash what lies in the folder."""
    item_bytes = np.dtype(dtype).itemsize
    return Manifest(
        name=name,
        tokenizer=words.kind,
        tokenizer_sha256=words.key if words.kind is Tokenizer.other else None,
        vocab_size=words.vocab_size,
        dtype=dtype,
        n_train_tokens=(folder / TRAIN_NAME).stat().st_size // item_bytes,
        n_val_tokens=(folder / VAL_NAME).stat().st_size // item_bytes,
        sha256={file: sha256_of_file(folder / file) for file in (TRAIN_NAME, VAL_NAME)},
        source=source,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def put_in_place(temporary: Path, folder: Path, manifest: Manifest) -> Manifest:
    """Rename the finished folder; when another launch was faster, its manifest is the answer."""
    write_manifest(temporary, manifest)
    try:
        temporary.rename(folder)
    except OSError:
        existing = read_manifest(folder)
        if existing is None:
            raise
        return existing
    return manifest


def check_place(folder: Path) -> None:
    """Nothing of the user's is overwritten."""
    if is_in_the_way(folder):
        fix = f"move '{folder}' away, or data.dir=ELSEWHERE"
        message = "in the way, and not prepared data (no manifest.json)"
        raise ConfigError([Problem(path="data.dir", value=str(folder), message=message, fix=fix)])


def check_disk(folder: Path, need_bytes: int) -> None:
    """Before the first byte is written."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free_bytes = shutil.disk_usage(place).free
    if need_bytes > free_bytes:
        message = f"the token files take up to {format_bytes(need_bytes)}, {format_bytes(free_bytes)} are free"
        raise ConfigError(
            [Problem(path="data.dir", value=str(folder), message=message, fix="data.dir=ON_A_LARGER_DISK")]
        )
