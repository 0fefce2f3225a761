"""Public corpora in parquet shards on huggingface.co -> token files, a shard at a time, resumable after each.

A shard is downloaded, tokenised with GPT-2's BPE (documents end with <|endoftext|>, as in nanoGPT's prepare.py),
appended to the token files, and deleted: the disk holds one shard besides the tokens. `progress.json` is written after
each shard with the lengths of the files, so whatever a crash left behind them is cut off.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from preflight.dataset import TRAIN_NAME, VAL_NAME, Manifest, smallest_dtype
from preflight.errors import ConfigError, Problem
from preflight.units import format_bytes, format_count
from trainers.download import get_file, get_json
from trainers.encoders import gpt2_encoder, gpt2_encoding
from trainers.prepare import Say, check_disk, check_place, describe, put_in_place

BASE_URL = "https://huggingface.co"
PROGRESS_NAME = "progress.json"
TOKEN_BYTES_PER_PARQUET_BYTE = 0.75  # fineweb-edu sample-10BT: 28.5 GB of parquet, 10B tokens of 2 bytes: 0.70
N_ROWS = 1024  # documents tokenised at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class HubCorpus:
    """Where the shards lie: every .parquet file below `folder` at `revision`, with a column `text`."""

    name: str
    repository: str
    revision: str
    folder: str


CORPORA = {
    corpus.name: corpus
    for corpus in (
        HubCorpus(
            name="openwebtext",
            repository="Skylion007/openwebtext",
            revision="refs/convert/parquet",  # where the hub keeps the parquet form of the original archives
            folder="plain_text/train",
        ),
        HubCorpus(name="fineweb_edu", repository="HuggingFaceFW/fineweb-edu", revision="main", folder="sample/10BT"),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How far a preparation has come."""

    n_shards: int
    n_documents: int
    n_train_bytes: int
    n_val_bytes: int


def prepare_hub_corpus(
    corpus: HubCorpus, folder: Path, *, base_url: str, val_fraction: float, n_shards: int | None, say: Say
) -> Manifest:
    """Every shard (or the first `n_shards`); every so many documents one is held out."""
    check_place(folder)
    shards = list_shards(corpus, base_url)[:n_shards]
    read_texts = parquet_reader()
    encoding = gpt2_encoding()
    dtype = smallest_dtype(encoding.n_vocab)
    n_bytes = sum(size for _, size in shards)
    largest = max(size for _, size in shards)
    check_disk(folder, int(n_bytes * TOKEN_BYTES_PER_PARQUET_BYTE) + largest)
    say(f"{corpus.name}: {len(shards)} shards, {format_bytes(n_bytes)}")
    work = folder.parent / f".{folder.name}.unfinished"
    with only_one(work):
        done = resume_from(work)
        for number, (url, _) in enumerate(shards):
            if number < done.n_shards:
                continue
            shard = get_file(url, work / f"shard-{number}.parquet", say)
            done = append_shard(work, read_texts(shard), done, encoding, dtype, val_fraction)
            shard.unlink()
            n_tokens = (done.n_train_bytes + done.n_val_bytes) // np.dtype(dtype).itemsize
            say(f"{corpus.name}: {number + 1} of {len(shards)} shards, {format_count(n_tokens)} tokens")
        source = f"{base_url}/datasets/{corpus.repository} {corpus.folder}, {len(shards)} shards"
        manifest = describe(work, corpus.name, gpt2_encoder(encoding), dtype, source)
        (work / PROGRESS_NAME).unlink()
        return put_in_place(work, folder, manifest)


def list_shards(corpus: HubCorpus, base_url: str) -> list[tuple[str, int]]:
    """(URL, bytes) of each shard in order, by the hub's tree API."""
    revision = quote(corpus.revision, safe="")
    tree_url = f"{base_url}/api/datasets/{corpus.repository}/tree/{revision}/{corpus.folder}"
    files = [entry for entry in get_json(tree_url) if entry["path"].endswith(".parquet")]
    if not files:
        message = f"{tree_url} lists no parquet file: the dataset has moved"
        raise ConfigError([Problem(path="", value="", message=message, fix="data=bin with token files of yours")])
    root = f"{base_url}/datasets/{corpus.repository}/resolve/{revision}"
    return sorted((f"{root}/{quote(entry['path'])}", int(entry["size"])) for entry in files)


def append_shard(
    work: Path, batches: Iterator[Sequence[str]], done: Done, encoding: Any, dtype: str, val_fraction: float
) -> Done:
    """Tokenise and append; the progress file makes it count."""
    period = round(1 / val_fraction)
    n_documents, n_threads = done.n_documents, os.cpu_count() or 1
    with (work / TRAIN_NAME).open("ab") as train, (work / VAL_NAME).open("ab") as val:
        for texts in batches:
            for tokens in encoding.encode_ordinary_batch(texts, num_threads=n_threads):
                n_documents += 1
                ids = np.array([*tokens, encoding.eot_token], dtype=np.dtype(dtype).newbyteorder("<"))
                (train if n_documents % period else val).write(ids.tobytes())
        for file in (train, val):
            file.flush()
            os.fsync(file.fileno())
        sizes = train.tell(), val.tell()
    now = Done(n_shards=done.n_shards + 1, n_documents=n_documents, n_train_bytes=sizes[0], n_val_bytes=sizes[1])
    temporary = work / f"{PROGRESS_NAME}.tmp"
    temporary.write_text(json.dumps(asdict(now)))
    temporary.replace(work / PROGRESS_NAME)
    return now


def resume_from(work: Path) -> Done:
    """What an earlier, interrupted call has finished; the rest is cut off."""
    progress = work / PROGRESS_NAME
    nothing = Done(n_shards=0, n_documents=0, n_train_bytes=0, n_val_bytes=0)
    done = Done(**json.loads(progress.read_text())) if progress.exists() else nothing
    for name, n_bytes in ((TRAIN_NAME, done.n_train_bytes), (VAL_NAME, done.n_val_bytes)):
        with (work / name).open("ab") as file:
            file.truncate(n_bytes)
    return done


def parquet_reader() -> Callable[[Path], Iterator[Sequence[str]]]:
    """A function from a shard to batches of texts; ConfigError when pyarrow is missing, before anything is fetched."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")  # an optional extra
    except ImportError as error:
        message = "parquet shards are read with pyarrow, which is not installed"
        fix = "pip install pyarrow"
        raise ConfigError([Problem(path="", value="", message=message, fix=fix)]) from error

    def read(path: Path) -> Iterator[Sequence[str]]:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=N_ROWS, columns=["text"]):
                yield batch.column(0).to_pylist()

    return read


@contextmanager
def only_one(work: Path) -> Iterator[None]:
    """A lock that dies with its process: two preparations must not append to the same files."""
    work.mkdir(parents=True, exist_ok=True)
    lock_path = work.with_name(work.name + ".lock")
    with lock_path.open("w") as lock:
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                message = f"another process is preparing {work}"
                raise ConfigError([Problem(path="", value="", message=message, fix="wait for it")]) from error
        yield
        lock_path.unlink()
