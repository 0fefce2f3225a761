"""Which token files does the run read, do they suit the model, and are they there?"""

from __future__ import annotations

import os
from pathlib import Path

from conf.choices import DataKind, Tokenizer
from conf.schema import DataConfig, ModelConfig
from preflight.dataset import (
    BPE_KINDS,
    DEFAULT_VAL_FRACTION,
    READY_KINDS,
    Manifest,
    folder_problems,
    manifest_of_foreign_files,
    n_bytes_below,
    option_of,
    prepared_name,
    read_manifest,
    text_fault,
)
from preflight.errors import ConfigError
from preflight.plan import DataPlan
from preflight.resolve.resolution import Resolution
from preflight.tokenizer_file import TOKENIZER_NAME, largest_id

BPE_IDS = 50257  # of GPT-2
VOCAB_MULTIPLE = 64  # matrix units like it
AUTO = {Tokenizer.byte: DataKind.stdlib, Tokenizer.gpt2: DataKind.openwebtext, Tokenizer.other: DataKind.bin}
OWN_KINDS = (DataKind.text, DataKind.bin)  # those that data.path belongs to


def resolve_data(data: DataConfig, model: ModelConfig, sequence_length: int, resolution: Resolution) -> DataPlan | None:
    """None: there is no such data; the problem is noted."""
    kind = AUTO[model.tokenizer] if data.kind is DataKind.auto else data.kind
    resolution.provenance["data.kind"] = "default" if data.kind is DataKind.auto else "given"
    path = _own_path(data, kind, resolution)
    if data.val_fraction != DEFAULT_VAL_FRACTION and kind in READY_KINDS and resolution.is_sound("data.val_fraction"):
        message = f"has no effect with data={kind.name}, which is divided when it is prepared"
        resolution.refuse("data.val_fraction", data.val_fraction, message, f"data.val_fraction={DEFAULT_VAL_FRACTION}")
    tokenizer_path = _tokenizer_path(data, kind, model, resolution)
    _check_tokenizer(kind, model, resolution, has_own=tokenizer_path is not None)
    if data.field != "text" and kind is not DataKind.text:
        message = f"has no effect with data={kind.name}"
        resolution.refuse("data.field", data.field, message, "data.field=text, or data=text data.path=FILE.jsonl")
    if kind is DataKind.text and path is None:
        return None
    n_source_bytes = _n_source_bytes(path) if kind is DataKind.text and path is not None else None
    if n_source_bytes is not None:
        _check_length(data, n_source_bytes, sequence_length, resolution)
    name = prepared_name(kind, model.tokenizer, data.val_fraction, path, data.field, tokenizer_path)
    folder = (
        path
        if kind is DataKind.bin and path is not None
        else Path(os.path.abspath(os.path.expanduser(data.dir))) / name
    )
    manifest = _manifest(folder, kind, model, sequence_length, resolution)
    return DataPlan(
        kind=kind,
        name=path.name if kind is DataKind.bin and path is not None else name,
        source_path=str(path) if kind is DataKind.text else None,
        dir=str(folder),
        val_fraction=data.val_fraction,
        prepared=manifest is not None,
        n_train_tokens=manifest.n_train_tokens if manifest is not None else None,
        n_val_tokens=manifest.n_val_tokens if manifest is not None else None,
        dtype=manifest.dtype if manifest is not None else None,
        n_source_bytes=n_source_bytes,
        field=data.field,
        tokenizer_path=None if tokenizer_path is None else str(tokenizer_path),
    )


def _n_source_bytes(path: Path) -> int | None:
    """None: with compressed tables among them, the bytes say nothing of the text."""
    has_tables = path.suffix == ".parquet" or (path.is_dir() and next(path.rglob("*.parquet"), None) is not None)
    return None if has_tables else n_bytes_below(path)


def _tokenizer_path(data: DataConfig, kind: DataKind, model: ModelConfig, resolution: Resolution) -> Path | None:
    """Absolute, and its ids fit the model; None: the model's own tokenizer, or a problem that is noted."""
    if data.tokenizer is None:
        return _folders_tokenizer(kind, model, resolution)
    if kind is not DataKind.text:
        message = f"has no effect with data={kind.name}"
        resolution.refuse("data.tokenizer", data.tokenizer, message, "data.tokenizer=null")
        return None
    path = Path(os.path.abspath(os.path.expanduser(data.tokenizer)))
    try:
        n_ids = largest_id(path) + 1
    except (OSError, ValueError) as error:
        message = f"{path} cannot be read as a tokenizer.json: {error}"
        resolution.refuse("data.tokenizer", data.tokenizer, message, "data.tokenizer=PATH/tokenizer.json")
        return None
    if n_ids > model.vocab_size:
        message = f"token ids of {path.name} go up to {n_ids - 1:,}"
        padded = -(-n_ids // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
        resolution.refuse("model.vocab_size", model.vocab_size, message, f"model.vocab_size={padded}")
    return path


def _folders_tokenizer(kind: DataKind, model: ModelConfig, resolution: Resolution) -> Path | None:
    """The one beside the config.json of a folder's model, which no name stands for."""
    if kind is not DataKind.text or model.path is None or model.tokenizer is not Tokenizer.other:
        return None
    path = Path(model.path, TOKENIZER_NAME)
    try:
        is_mine = path.is_file() and largest_id(path) < model.vocab_size
    except (OSError, ValueError):  # then it is of no use, and data.tokenizer= is asked for
        is_mine = False
    if is_mine:
        resolution.provenance["data.tokenizer"] = f"detected: {path}"
    return path if is_mine else None


def _check_length(data: DataConfig, n_source_bytes: int, sequence_length: int, resolution: Resolution) -> None:
    """The held-out part is the smaller one, and a token is at least a byte."""
    n_held_out = int(n_source_bytes * min(data.val_fraction, 1.0 - data.val_fraction))
    judged = ("data.path", "data.field", "data.val_fraction", "trainer.sequence_length")
    if n_held_out > sequence_length or not resolution.is_sound(*judged):
        return
    message = (
        f"has {n_source_bytes:,} bytes, of which data.val_fraction={data.val_fraction:g} holds out {n_held_out:,}; "
        f"a sequence needs {sequence_length + 1:,}"
    )
    shorter = f"trainer.sequence_length={n_held_out - 1}" if n_held_out > 8 else "data=stdlib, or a longer text"
    resolution.refuse("data.path", data.path, message, shorter)


def _own_path(data: DataConfig, kind: DataKind, resolution: Resolution) -> Path | None:
    """Absolute; None when the kind has none, or when it is missing."""
    if not resolution.is_sound("data.path"):
        return None
    if data.path is None or not data.path.strip():
        is_needed = kind is DataKind.text or data.kind is DataKind.bin
        if is_needed:
            what = "a text file or a folder of them" if kind is DataKind.text else "a folder with train.bin and val.bin"
            resolution.refuse(
                "data.path", data.path, f"data={kind.name} needs {what}", "data.path=PATH, or data=stdlib"
            )
        return None
    if kind not in OWN_KINDS:
        message = f"has no effect with data={data.kind.name}"
        resolution.refuse("data.path", data.path, message, f"data=text data.path={data.path}")
        return None
    path = Path(os.path.abspath(os.path.expanduser(data.path)))
    fault = _path_fault(path, kind)
    if fault is not None:
        is_text = data.kind is DataKind.auto and path.is_file()  # a model without a tokenizer of ours takes token files
        fix = f"data=text data.path={data.path}" if is_text else "data.path=PATH of what exists, or data=stdlib"
        resolution.refuse("data.path", data.path, fault, fix)
        return None
    if kind is DataKind.text:
        from preflight.documents import first_fault  # bills of other data do not pay for it

        field_fault = first_fault(path, data.field)
        resolution.problems += [] if field_fault is None else [field_fault]
    return path


def _path_fault(path: Path, kind: DataKind) -> str | None:
    if not os.path.exists(path):  # unlike Path.exists, without raising where a folder on the way is closed
        return f"{path} does not exist"
    if kind is DataKind.bin:
        if not path.is_dir():
            return f"{path} is not a folder"
        missing = [name for name in ("train.bin", "val.bin") if not os.path.isfile(path / name)]
        return f"{path} has no {' and no '.join(missing)}" if missing else None
    return text_fault(path)


def _check_tokenizer(kind: DataKind, model: ModelConfig, resolution: Resolution, *, has_own: bool) -> None:
    """Ids must fit the vocabulary, and text needs a tokenizer that is here."""
    if kind in BPE_KINDS and model.vocab_size < BPE_IDS:
        message = (
            f"its GPT-2 token ids go up to {BPE_IDS - 1:,}, "
            f"model {model.name} ({model.tokenizer.name}) has a vocabulary of {model.vocab_size:,}"
        )
        fix = "data=stdlib" if model.tokenizer is Tokenizer.byte else "data=bin data.path=FOLDER"
        resolution.refuse("data", kind.name, message, fix)
    elif kind not in (*BPE_KINDS, DataKind.bin) and model.tokenizer is Tokenizer.other and not has_own:
        message = f"model {model.name} has a tokenizer of its own, which is not here"
        fix = (
            "data=bin data.path=FOLDER with its token files, or data=text data.path=TEXT data.tokenizer=tokenizer.json"
        )
        resolution.refuse("data", kind.name, message, fix)
    if model.tokenizer is Tokenizer.byte and model.vocab_size < 256 and not has_own:
        message = "bytes go up to 255"
        resolution.refuse("model.vocab_size", model.vocab_size, message, "model.vocab_size=256")


def _manifest(
    folder: Path, kind: DataKind, model: ModelConfig, sequence_length: int, resolution: Resolution
) -> Manifest | None:
    """What lies there, with everything that is wrong with it noted."""
    option = option_of(kind)
    try:
        manifest = read_manifest(folder, option)
    except ConfigError as error:
        resolution.problems.extend(error.problems)
        return None
    if manifest is None and kind is DataKind.bin:
        manifest = manifest_of_foreign_files(folder, model.vocab_size)
    if manifest is None:
        return None
    known = Tokenizer.other not in (manifest.tokenizer, model.tokenizer)
    if known and manifest.tokenizer is not model.tokenizer and manifest.vocab_size <= model.vocab_size:
        resolution.provenance["data.tokenizer"] = (
            f"detected: {manifest.tokenizer.name} tokens for a {model.tokenizer.name} model, "
            f"which uses {manifest.vocab_size:,} of its {model.vocab_size:,} ids"
        )
    resolution.problems.extend(
        folder_problems(folder, manifest, vocab_size=model.vocab_size, sequence_length=sequence_length, option=option)
    )
    return manifest
