"""Which tokens lie in a data folder, and can they be trained on? The manifest beside the token files answers.

A prepared folder holds `train.bin` and `val.bin` (bare little-endian token ids, as nanoGPT's prepare.py writes them)
and `manifest.json`, which is written last: a folder without one is not prepared, or was not made by us.
"""

from __future__ import annotations

import os
import shlex
import stat
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from json import loads
from pathlib import Path
from zlib import crc32

from conf.choices import DataKind, Tokenizer
from preflight.errors import ConfigError, Problem
from preflight.planfile import SCHEMA_VERSION, from_jsonable, write_json

MANIFEST_NAME = "manifest.json"
TRAIN_NAME = "train.bin"
VAL_NAME = "val.bin"
ITEM_BYTES = {"uint16": 2, "uint32": 4}
N_SAMPLED_BLOCKS = 16  # of a foreign token file, spread evenly: enough to catch a wrong dtype or tokenizer
SAMPLED_BLOCK_TOKENS = 4096
DEFAULT_VAL_FRACTION = 0.1  # of data.val_fraction
BPE_KINDS = (DataKind.openwebtext, DataKind.fineweb_edu)  # prepared with GPT-2's tokenizer, whatever the model
READY_KINDS = (*BPE_KINDS, DataKind.bin)  # tokenised and divided before the launcher sees them


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What the folder holds; counts are tokens, not bytes."""

    name: str
    tokenizer: Tokenizer
    vocab_size: int  # every id is below it
    dtype: str  # uint16 | uint32
    n_train_tokens: int
    n_val_tokens: int
    sha256: Mapping[str, str]  # file name -> digest; empty when nobody vouches for the files
    source: str  # where the text came from
    created_at: str  # ISO 8601, UTC
    tokenizer_sha256: str | None = None  # of the tokenizer.json, where tokenizer is `other` and we made the files

    def n_tokens(self) -> dict[str, int]:
        """Tokens by file name."""
        return {TRAIN_NAME: self.n_train_tokens, VAL_NAME: self.n_val_tokens}


def smallest_dtype(vocab_size: int) -> str:
    """Two bytes a token hold 65,536 ids; larger vocabularies take four."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """The last step of a preparation: atomically, when the token files are complete."""
    write_json({"manifest": manifest}, folder / MANIFEST_NAME)


def prepared_name(
    kind: DataKind,
    tokenizer: Tokenizer,
    val_fraction: float,
    path: Path | None,
    field: str = "text",
    tokenizer_path: Path | None = None,
) -> str:
    """The folder below data.dir: what was prepared differently, or from a text that has changed, lies in another."""
    if kind in READY_KINDS:
        return kind.name
    name = kind.name if path is None else f"text-{path.stem}-{_fingerprint(path):08x}"
    name += "" if field == "text" else f"-{crc32(field.encode()):08x}"
    if tokenizer_path is not None:
        name += f"-tokenizer-{_fingerprint(tokenizer_path):08x}"
    elif tokenizer is Tokenizer.gpt2:
        name += "-gpt2"
    return name if val_fraction == DEFAULT_VAL_FRACTION else f"{name}-val{val_fraction:g}"


def n_bytes_below(path: Path) -> int:
    """Of a file, or of all files below a folder."""
    return sum(status.st_size for _, status in _files_below(path))


def _fingerprint(path: Path) -> int:
    """Changes with the place, the names, the sizes and the times of a file or of all files below a folder."""
    facts = [(str(file), status.st_size, status.st_mtime_ns) for file, status in _files_below(path)]
    return crc32(repr((str(path), facts)).encode())


def _files_below(path: Path) -> list[tuple[Path, os.stat_result]]:
    """Dangling links are no text."""
    files = [path] if path.is_file() else sorted(Path(top, name) for top, _, names in os.walk(path) for name in names)
    return [(file, file.stat()) for file in files if file.exists()]


def text_fault(path: Path) -> str | None:
    """Why a file, or a folder of them, cannot be read as text; hidden files are none, nor are pipes in a folder."""
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return f"{path} is not a regular file"  # reading a pipe or a device may never end
        files = [path] if stat.S_ISREG(mode) else list(shown_files_below(path))
        closed = next((file for file in files if not os.access(file, os.R_OK)), None)
        n_bytes = sum(file.stat().st_size for file in files)
    except OSError as error:
        return f"{error.filename or path} cannot be read: {error.strerror or error}"
    if closed is not None:
        return f"{closed} cannot be read: Permission denied"
    if not files:
        return f"{path} has no file in it"
    return f"{path} is empty" if n_bytes == 0 else None


def shown_files_below(folder: Path) -> Iterator[Path]:
    """Without hidden files and folders. OSError: a folder may not be listed."""
    for top, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (path for name in names if not name.startswith(".") and (path := Path(top, name)).is_file())


def _raise(error: OSError) -> None:
    """os.walk passes over folders that it may not list."""
    raise error


def option_of(kind: DataKind) -> str:
    """Which option leads to the folder of token files."""
    return "data.path" if kind is DataKind.bin else "data.dir"


def prepare_command(kind: DataKind, folder: str, tokenizer: Tokenizer, val_fraction: float) -> str:
    """What fills `folder` (shell quoted); defaults of the program are left out."""
    words = ["python", "scripts/prepare_data.py", kind.name, "--dir", str(Path(folder).parent)]
    if kind is DataKind.shakespeare:  # the hub's corpora have one tokenizer and their own held-out part
        words += ["--tokenizer", tokenizer.name] if tokenizer is Tokenizer.gpt2 else []
        words += ["--val-fraction", f"{val_fraction:g}"] if val_fraction != DEFAULT_VAL_FRACTION else []
    return shlex.join(words)


def read_manifest(folder: Path, option: str = "data.dir") -> Manifest | None:
    """None: not prepared. ConfigError with the cause when the file is torn or not one of ours.

    `option` is how the folder was chosen: with `data.path` it is the user's, and does without a manifest.
    """
    path = folder / MANIFEST_NAME
    try:
        document = loads(path.read_text(encoding="utf-8"))
        if document["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version {document['schema_version']}, this program reads {SCHEMA_VERSION}")
        manifest = from_jsonable(Manifest, document["manifest"])
        if manifest.dtype not in ITEM_BYTES:
            raise ValueError(f"dtype {manifest.dtype!r}, known are {', '.join(ITEM_BYTES)}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        cause = error.strerror or str(error)
    except KeyError as error:
        cause = f"not a manifest of ours: no {error}"
    except (TypeError, ValueError) as error:
        cause = f"torn or not a manifest of ours: {error}"
    else:
        return manifest if isinstance(manifest, Manifest) else None
    fix = shlex.join(["rm", str(path)]) if option == "data.path" else _prepare_again(folder)
    raise ConfigError([Problem(path=option, value=str(path), message=cause, fix=fix)])


def is_in_the_way(folder: Path) -> bool:
    """Not prepared data, and perhaps the user's; an empty folder is as good as none."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    return read_manifest(folder) is None


def _prepare_again(folder: Path) -> str:
    """The whole folder: without its manifest it would be in the way of the next preparation."""
    return f"{shlex.join(['rm', '-r', str(folder)])} and prepare the data again"


def manifest_of_foreign_files(folder: Path, vocab_size: int, dtype: str | None = None) -> Manifest | None:
    """Ready token files that came without a manifest: counted from their sizes, the dtype by the vocabulary.

    None when one of the two files is missing.
    """
    dtype = dtype or smallest_dtype(vocab_size)
    paths = [folder / TRAIN_NAME, folder / VAL_NAME]
    if not all(path.is_file() for path in paths):
        return None
    n_train_tokens, n_val_tokens = (path.stat().st_size // ITEM_BYTES[dtype] for path in paths)
    return Manifest(
        name=folder.name,
        tokenizer=Tokenizer.other,
        vocab_size=vocab_size,
        dtype=dtype,
        n_train_tokens=n_train_tokens,
        n_val_tokens=n_val_tokens,
        sha256={},
        source=f"{folder} (no manifest: {dtype} assumed from a vocabulary of {vocab_size:,})",
        created_at="",
    )


def folder_problems(
    folder: Path, manifest: Manifest, *, vocab_size: int, sequence_length: int, option: str = "data.dir"
) -> tuple[Problem, ...]:
    """Everything wrong with the files that can be seen without reading them whole; `option` is how they were chosen."""
    return tuple(
        Problem(path=option, value=str(folder), message=message, fix=fix)
        for message, fix in (
            *_vocabulary_faults(manifest, vocab_size),
            *(
                fault
                for name, n_tokens in manifest.n_tokens().items()
                for fault in _file_faults(folder / name, n_tokens, manifest, vocab_size, sequence_length, option)
            ),
        )
    )


def _vocabulary_faults(manifest: Manifest, vocab_size: int) -> Iterator[tuple[str, str]]:
    if manifest.vocab_size > vocab_size:
        yield (
            f"token ids go up to {manifest.vocab_size - 1:,}, the model's vocabulary has {vocab_size:,}",
            f"model.vocab_size={manifest.vocab_size}, or data made for the model's tokenizer",
        )


def _file_faults(
    path: Path, n_tokens: int, manifest: Manifest, vocab_size: int, sequence_length: int, option: str
) -> Iterator[tuple[str, str]]:
    prepare_again = f"{option}=FOLDER of whole token files" if option == "data.path" else _prepare_again(path.parent)
    if not path.is_file() or not os.access(path, os.R_OK):
        yield f"{path.name} {'cannot be read: Permission denied' if path.is_file() else 'is missing'}", prepare_again
        return
    item_bytes, n_bytes = ITEM_BYTES[manifest.dtype], path.stat().st_size
    if n_bytes != n_tokens * item_bytes:
        expected = f"{n_tokens:,} {manifest.dtype} tokens take {n_tokens * item_bytes:,}"
        is_whole = option == "data.path" and manifest.sha256 and n_bytes % item_bytes == 0
        without_manifest = shlex.join(["rm", str(path.parent / MANIFEST_NAME)])
        fix = f"{without_manifest}: the tokens are counted as they are" if is_whole else prepare_again
        yield f"{path.name} has {n_bytes:,} bytes, {expected}: torn, or another dtype", fix
        return
    if n_tokens <= sequence_length:  # one sequence needs its length and one more token as the last target
        shorter = f"trainer.sequence_length={n_tokens - 1}" if n_tokens > 1 else "more text"
        yield f"{path.name} holds {n_tokens:,} tokens, a sequence needs {sequence_length + 1:,}", shorter
        return
    if not manifest.sha256:
        largest = largest_sampled_id(path, manifest.dtype)
        if largest >= vocab_size:
            message = f"{path.name} holds token id {largest:,}, the model's vocabulary has {vocab_size:,}"
            yield message, "a model with the tokenizer of these files, or files of another dtype"


def largest_sampled_id(path: Path, dtype: str) -> int:
    """The largest id in blocks spread over the file: a cheap look at files that nobody vouches for."""
    item_bytes = ITEM_BYTES[dtype]
    n_tokens = path.stat().st_size // item_bytes
    stride = max(SAMPLED_BLOCK_TOKENS, n_tokens // N_SAMPLED_BLOCKS)
    largest = 0
    with path.open("rb") as file:
        for start in range(0, n_tokens, stride):
            file.seek(start * item_bytes)
            block = array("H" if dtype == "uint16" else "I")
            block.frombytes(file.read(min(SAMPLED_BLOCK_TOKENS, n_tokens - start) * item_bytes))
            largest = max(largest, max(block))
    return largest


def sha256_of_file(path: Path) -> str:
    """Hex digest, read in pieces: token files can be larger than memory."""
    import hashlib  # not at module level: loads OpenSSL, and a bill has nothing to hash

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
