"""From text to token files: train.bin, val.bin and their manifest, made once, whole or not at all.

Documents come in an order that depends on their names alone, a piece at a time, so memory stays bounded; the last
`val_fraction` of the text is held out. Everything is written to a folder of its own, which is renamed into place when
it is complete: of two launches that prepare the same data at once, one wins and the other uses its files.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.choices import DataKind, Tokenizer
from preflight.dataset import (
    TRAIN_NAME,
    VAL_NAME,
    Manifest,
    folder_problems,
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

PIECE_BYTES = 2**20
N_PROBE_BYTES = 8192  # a NUL byte in here and it is not text
REPORT_INTERVAL_SECONDS = 5.0
STALE_SECONDS = 24 * 3600.0
Say = Callable[[str], None]
Encode = Callable[[bytes], NDArray[np.integer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Files of text, in order."""

    name: str
    source: str  # for the manifest
    paths: tuple[Path, ...]

    def n_bytes(self) -> int:
        """Of all texts."""
        return sum(path.stat().st_size for path in self.paths)

    def pieces(self) -> Iterator[bytes]:
        """The text from start to end, about PIECE_BYTES at a time; no line is split unless it is longer than that."""
        for path in self.paths:
            with in_one_line("data.path", path, "data.path=FILE_OR_FOLDER that you can read"), path.open("rb") as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece + file.readline(PIECE_BYTES)


def ensure_prepared(plan: RunPlan, say: Say) -> DataPlan:
    """The plan's data with its counts; what takes seconds (the standard library, the user's text) is prepared here."""
    data, folder = plan.data, Path(plan.data.dir)
    option = option_of(data.kind)
    manifest = read_manifest(folder, option)
    if manifest is None and data.kind in (DataKind.stdlib, DataKind.text):
        source = Path(data.source_path or "")
        with in_one_line("data.path", source, "data.path=FILE_OR_FOLDER that you can read"):
            corpus = stdlib_corpus() if data.kind is DataKind.stdlib else text_corpus(data.name, source)
        with in_one_line("data.dir", folder, "data.dir=ELSEWHERE, where you can write"):
            manifest = prepare(corpus, folder, tokenizer=plan.model.tokenizer, val_fraction=data.val_fraction, say=say)
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


def stdlib_corpus() -> Corpus:
    """The .py sources that every Python brings along, without its tests and installed packages."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in left_out]
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    source = f"{len(paths)} .py files of the standard library of Python {sysconfig.get_python_version()}"
    return Corpus(name="stdlib", source=source, paths=_shuffled(paths, root))


def text_corpus(name: str, path: Path) -> Corpus:
    """One file, or every text file below a folder (hidden and binary ones are left out)."""
    if path.is_file():
        return Corpus(name=name, source=str(path), paths=(path,))
    candidates = [p for p in path.rglob("*") if p.is_file() and not _is_hidden(p.relative_to(path))]
    paths = [p for p in candidates if p.stat().st_size and not _is_binary(p)]
    if not paths:
        message = "no text file there" if path.exists() else "does not exist"
        raise ConfigError([Problem(path="data.path", value=str(path), message=message, fix="data.path=FILE_OR_FOLDER")])
    return Corpus(name=name, source=f"{path} ({len(paths)} of {len(candidates)} files)", paths=_shuffled(paths, path))


def prepare(corpus: Corpus, folder: Path, *, tokenizer: Tokenizer, val_fraction: float, say: Say) -> Manifest:
    """Tokenise into a folder beside `folder`, then rename it there."""
    check_place(folder)
    encode, vocab_size = encoder(tokenizer)
    dtype = smallest_dtype(vocab_size)
    n_bytes = corpus.n_bytes()
    tokens_per_byte = 1.0 if tokenizer is Tokenizer.byte else 0.5  # BPE: 0.25 in English, more in other languages
    check_disk(folder, int(n_bytes * tokens_per_byte) * np.dtype(dtype).itemsize)
    folder.parent.mkdir(parents=True, exist_ok=True)
    forget_killed_preparations(folder)
    shelter = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".tmp"))
    temporary = shelter / folder.name  # inside: mkdtemp's own folder is closed to everybody else
    try:
        temporary.mkdir()
        n_train_bytes = int(n_bytes * (1.0 - val_fraction))
        pieces = told(corpus.pieces(), n_bytes, f"preparing {corpus.name}", say)
        write_tokens(cut(pieces, n_train_bytes), (temporary / TRAIN_NAME, temporary / VAL_NAME), encode, dtype)
        manifest = describe(temporary, corpus.name, tokenizer, vocab_size, dtype, corpus.source)
        say(f"prepared {folder}: {manifest.n_train_tokens:,} training and {manifest.n_val_tokens:,} held-out tokens")
        return put_in_place(temporary, folder, manifest)
    finally:
        shutil.rmtree(shelter, ignore_errors=True)


def forget_killed_preparations(folder: Path) -> None:
    """Remove what killed ones have left beside `folder`, when nothing in it was touched for a day."""
    for left in folder.parent.glob(f".{glob.escape(folder.name)}.*.tmp"):
        with suppress(FileNotFoundError):  # it is being renamed or removed: alive
            if max(path.stat().st_mtime for path in (left, *left.rglob("*"))) < time.time() - STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def in_one_line(option: str, place: Path, fix: str) -> Iterator[None]:
    """A file that cannot be read or written is a fault of the configuration, not of the program."""
    try:
        yield
    except OSError as error:
        message = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        raise ConfigError([Problem(path=option, value=str(place), message=message, fix=fix)]) from error


def told(pieces: Iterator[bytes], n_bytes: int, what: str, say: Say) -> Iterator[bytes]:
    """The same pieces; every few seconds a word on how far they are."""
    n_seen, began = 0, time.monotonic()
    reported = began
    for piece in pieces:
        yield piece
        n_seen += len(piece)
        now = time.monotonic()
        if now - reported > REPORT_INTERVAL_SECONDS:
            reported = now
            left = format_seconds((n_bytes - n_seen) * (now - began) / n_seen)
            say(f"{what}: {format_bytes(n_seen)} of {format_bytes(n_bytes)}, {left} left")


def write_tokens(pieces: Iterator[tuple[bool, bytes]], paths: tuple[Path, Path], encode: Encode, dtype: str) -> None:
    """Held-out pieces go to the second file, the others to the first."""
    with paths[0].open("wb") as train, paths[1].open("wb") as val:
        for is_held_out, piece in pieces:
            (val if is_held_out else train).write(encode(piece).astype(np.dtype(dtype).newbyteorder("<")).tobytes())
        for file in (train, val):
            file.flush()
            os.fsync(file.fileno())


def cut(pieces: Iterator[bytes], n_train_bytes: int) -> Iterator[tuple[bool, bytes]]:
    """Whether a piece is held out, and the piece; the one that straddles the border is split at a line."""
    n_seen = 0
    for piece in pieces:
        at = min(max(0, n_train_bytes - n_seen), len(piece))
        if 0 < at < len(piece):
            at = piece.find(b"\n", at - 1) + 1 or at
        n_seen += len(piece)
        if piece[:at]:
            yield False, piece[:at]
        if piece[at:]:
            yield True, piece[at:]


def describe(folder: Path, name: str, tokenizer: Tokenizer, vocab_size: int, dtype: str, source: str) -> Manifest:
    """Count and hash what lies in the folder."""
    item_bytes = np.dtype(dtype).itemsize
    return Manifest(
        name=name,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
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
    """Nothing of the user's is overwritten; an empty folder is as good as none."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and read_manifest(folder) is None:
        fix = f"move '{folder}' away, or data.dir=ELSEWHERE"
        message = "in the way, and not prepared data (no manifest.json)"
        raise ConfigError([Problem(path="data.dir", value=str(folder), message=message, fix=fix)])


def encoder(tokenizer: Tokenizer) -> tuple[Encode, int]:
    """Bytes of text -> token ids, and the size of the vocabulary."""
    if tokenizer is Tokenizer.byte:
        return lambda text: np.frombuffer(text, dtype=np.uint8), 256
    if tokenizer is Tokenizer.gpt2:
        encoding = gpt2_encoding()
        return lambda text: np.array(encoding.encode_ordinary(text.decode("utf-8", "replace"))), encoding.n_vocab
    fix = "a byte-level model (model=tiny), a GPT-2 one, or ready token files with data=bin data.path=FOLDER"
    message = "text cannot be tokenised without its tokenizer"
    raise ConfigError([Problem(path="model.tokenizer", value=tokenizer.name, message=message, fix=fix)])


def gpt2_encoding() -> Any:
    """tiktoken's GPT-2 BPE; it fetches the vocabulary once and keeps it in TIKTOKEN_CACHE_DIR."""
    import tiktoken

    try:
        return tiktoken.get_encoding("gpt2")
    except OSError as error:  # of which every network error of tiktoken's is a kind
        message = f"GPT-2's vocabulary (0.5 MB) is not in tiktoken's cache and cannot be fetched: {_first_line(error)}"
        fix = "connect once, or set TIKTOKEN_CACHE_DIR to a copy of another machine's; bytes need none: model=tiny"
        raise ConfigError([Problem(path="model.tokenizer", value="gpt2", message=message, fix=fix)]) from error


def check_disk(folder: Path, need_bytes: int) -> None:
    """Before the first byte is written."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free_bytes = shutil.disk_usage(place).free
    if need_bytes > free_bytes:
        message = f"the token files take up to {format_bytes(need_bytes)}, {format_bytes(free_bytes)} are free"
        raise ConfigError(
            [Problem(path="data.dir", value=str(folder), message=message, fix="data.dir=ON_A_LARGER_DISK")]
        )


def _shuffled(paths: Sequence[Path], root: Path) -> tuple[Path, ...]:
    """By the hash of the name: neighbours in the alphabet are alike, and the held-out end should be like the rest."""
    return tuple(sorted(paths, key=lambda path: hashlib.sha256(path.relative_to(root).as_posix().encode()).digest()))


def _is_hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)


def _is_binary(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" in file.read(N_PROBE_BYTES)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
