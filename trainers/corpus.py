"""Where does text come from? Text files, folders, .jsonl, .parquet and Hugging Face datasets, a piece at a time.

A piece is about a megabyte of text, or a batch of documents, and knows the place after it: memory stays bounded, and a
preparation that was killed goes on at that place. Files come in an order that depends on their names alone.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from preflight.documents import JSON_LINES, PARQUET, binary_problem, field_problem, is_binary, text_of
from preflight.errors import ConfigError, Problem
from preflight.units import format_bytes

PIECE_BYTES = 2**20
N_ROWS = 1024  # of a table, at a time
PARQUET_EXPANSION = 4  # text per byte of a compressed file, at most (web text: 2 to 3)
Place = tuple[int, int]  # which file, and how far into it: bytes, or batches of rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of one file."""

    texts: Sequence[bytes]
    are_documents: bool  # whole ones, each of which ends; False: running text
    n_units: int  # of the corpus's, by which it is divided
    after: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Files of text, in order."""

    name: str
    source: str  # for the manifest
    paths: tuple[Path, ...]
    field: str = "text"  # of .jsonl and .parquet

    def n_units(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.paths)

    def shown(self, n_units: int) -> str:
        """As people read it."""
        return format_bytes(n_units)

    def n_text_bytes(self) -> int:
        """At most."""
        expansions = (PARQUET_EXPANSION if path.suffix == PARQUET else 1 for path in self.paths)
        return sum(path.stat().st_size * expansion for path, expansion in zip(self.paths, expansions, strict=True))

    def key(self) -> str:
        """Changes with the files, their sizes and their times."""
        facts = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in self.paths]
        return hashlib.sha256(repr((facts, self.field)).encode()).hexdigest()

    def pieces(self, start: Place = (0, 0)) -> Iterator[Piece]:
        """From that place to the end."""
        first, offset = start
        for number, path in enumerate(self.paths[first:], start=first):
            with in_one_line("data.path", path, "data.path=FILE_OR_FOLDER that you can read"):
                yield from self._pieces_of(path, number, offset if number == first else 0)

    def _pieces_of(self, path: Path, number: int, offset: int) -> Iterator[Piece]:
        if path.suffix == PARQUET:
            yield from parquet_pieces(path, self.field, number, offset)
        elif path.suffix in JSON_LINES:
            yield from json_pieces(path, self.field, number, offset)
        else:
            yield from text_pieces(path, number, offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetCorpus:
    """A dataset of Hugging Face's library: its rows are the units."""

    name: str
    source: str
    rows: Any  # datasets.Dataset
    field: str

    def n_units(self) -> int:
        """Rows."""
        return len(self.rows)

    def shown(self, n_units: int) -> str:
        """As people read it."""
        return f"{n_units:,} rows"

    def n_text_bytes(self) -> int:
        """What its Arrow tables take, in which text is not compressed."""
        return int(self.rows.data.nbytes)

    def key(self) -> str:
        """The library's own fingerprint."""
        return f"{self.rows._fingerprint} {self.field}"

    def pieces(self, start: Place = (0, 0)) -> Iterator[Piece]:
        """From that row to the end."""
        for begin in range(start[1], len(self.rows), N_ROWS):
            end = min(begin + N_ROWS, len(self.rows))
            yield Piece(
                texts=[encoded(text) for text in self.rows[begin:end][self.field]],
                are_documents=True,
                n_units=end - begin,
                after=(0, end),
            )


def text_pieces(path: Path, number: int, offset: int) -> Iterator[Piece]:
    """About PIECE_BYTES at a time; no line is split unless it is longer than that."""
    with path.open("rb") as file:
        file.seek(offset)
        while text := file.read(PIECE_BYTES):
            text += file.readline(PIECE_BYTES)
            yield Piece(texts=[text], are_documents=False, n_units=len(text), after=(number, file.tell()))


def json_pieces(path: Path, field: str, number: int, offset: int) -> Iterator[Piece]:
    """A JSON object a line; lines are read whole, however long."""
    with path.open("rb") as file:
        file.seek(offset)
        begin = offset
        while lines := file.readlines(PIECE_BYTES):
            counts = (partial(_line_number, path, begin, nth) for nth in range(len(lines)))
            pairs = zip(lines, counts, strict=True)
            texts = [encoded(_text_of(line, field, path, count)) for line, count in pairs if line.strip()]
            n_bytes = sum(map(len, lines))
            begin += n_bytes
            yield Piece(texts=texts, are_documents=True, n_units=n_bytes, after=(number, begin))


def parquet_pieces(path: Path, field: str, number: int, n_done: int) -> Iterator[Piece]:
    """N_ROWS rows at a time; a row's share of the file's bytes is the same for all."""
    parquet = parquet_library()
    with parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        if field not in names:
            raise ConfigError([field_problem(path, field, names)])
        n_rows, size, n_seen = max(1, file.metadata.num_rows), path.stat().st_size, 0
        for i, batch in enumerate(file.iter_batches(batch_size=N_ROWS, columns=[field])):
            n_before, n_seen = n_seen, n_seen + batch.num_rows
            if i < n_done:
                continue
            texts = [encoded(text) for text in batch.column(0).to_pylist()]
            share = size * n_seen // n_rows - size * n_before // n_rows
            yield Piece(texts=texts, are_documents=True, n_units=share, after=(number, i + 1))


def parquet_library() -> Any:
    """pyarrow, which is an optional extra."""
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        message = "parquet files are read with pyarrow, which is not installed"
        raise ConfigError([Problem(path="", value="", message=message, fix="pip install pyarrow")]) from error


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


def text_corpus(name: str, path: Path, field: str = "text") -> Corpus:
    """One file, or every text, .jsonl and .parquet file below a folder (hidden and other binary ones are left out)."""
    if path.is_file():
        if path.suffix not in (*JSON_LINES, PARQUET) and is_binary(path):
            raise ConfigError([binary_problem(path)])
        return Corpus(name=name, source=str(path), paths=(path,), field=field)
    candidates = [p for p in path.rglob("*") if p.is_file() and not _is_hidden(p.relative_to(path))]
    paths = [p for p in candidates if p.stat().st_size and (p.suffix == PARQUET or not is_binary(p))]
    if not paths:
        message = "no text file there" if path.exists() else "does not exist"
        raise ConfigError([Problem(path="data.path", value=str(path), message=message, fix="data.path=FILE_OR_FOLDER")])
    source = f"{path} ({len(paths)} of {len(candidates)} files)"
    return Corpus(name=name, source=source, paths=_shuffled(paths, path), field=field)


def dataset_corpus(name: str, source: str, config: str | None, split: str, field: str) -> DatasetCorpus:
    """A folder that `save_to_disk` wrote, or what `load_dataset` takes: a name on the hub, a folder, a kind of file."""
    try:
        library = importlib.import_module("datasets")  # an optional extra
    except ImportError as error:
        message = "Hugging Face datasets are read with their library, which is not installed"
        fix = "pip install datasets; .jsonl and .parquet files need it not: text --path FILE"
        raise ConfigError([Problem(path="", value="", message=message, fix=fix)]) from error
    try:
        if (Path(source) / "dataset_info.json").is_file() or (Path(source) / "dataset_dict.json").is_file():
            loaded = library.load_from_disk(source)
            rows = loaded[split] if isinstance(loaded, dict) else loaded
        else:
            rows = library.load_dataset(source, config, split=split)
    except Exception as error:  # the library raises what its loaders, the network and the disk raise
        message = f"{source}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        fix = "--path NAME_OR_FOLDER, --config and --split as on the dataset's page"
        raise ConfigError([Problem(path="", value="", message=message, fix=fix)]) from error
    if field not in rows.column_names:
        raise ConfigError([field_problem(Path(source), field, rows.column_names)])
    return DatasetCorpus(
        name=name, source=f"{source} {config or ''} {split}, {len(rows):,} rows", rows=rows, field=field
    )


def encoded(text: str) -> bytes:
    """UTF-8; half characters, which JSON can hold, become question marks."""
    return text.encode("utf-8", "replace")


@contextmanager
def in_one_line(option: str, place: Path, fix: str) -> Iterator[None]:
    """A file that cannot be read or written is a fault of the configuration, not of the program."""
    try:
        yield
    except OSError as error:
        message = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        raise ConfigError([Problem(path=option, value=str(place), message=message, fix=fix)]) from error


def _line_number(path: Path, begin: int, nth: int) -> int:
    """Of the nth line, from 0, after so many bytes."""
    with path.open("rb") as file:
        n_before = 0
        while file.tell() < begin:
            n_before += file.read(min(PIECE_BYTES, begin - file.tell())).count(b"\n")
    return n_before + nth + 1


def _text_of(line: bytes, field: str, path: Path, number: Callable[[], int]) -> str:
    text = text_of(line, field, path, number)
    if isinstance(text, Problem):
        raise ConfigError([text])
    return text


def _shuffled(paths: Sequence[Path], root: Path) -> tuple[Path, ...]:
    """By the hash of the name: neighbours in the alphabet are alike, and the held-out end should be like the rest."""
    return tuple(sorted(paths, key=lambda path: hashlib.sha256(path.relative_to(root).as_posix().encode()).digest()))


def _is_hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)
