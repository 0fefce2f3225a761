"""Text to token ids: bytes, GPT-2's BPE (tiktoken), or any tokenizer.json (Hugging Face tokenizers).

The two libraries work outside of Python's interpreter lock, so threads use every core.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.choices import Tokenizer
from preflight.dataset import sha256_of_file
from preflight.errors import ConfigError, Problem
from preflight.tokenizer_file import end_of_text, largest_id

Ids = NDArray[np.integer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """One tokenizer."""

    encode: Callable[[bytes], Ids]
    decode: Callable[[Sequence[int]], str]
    vocab_size: int  # every id is below it
    end: int | None  # stands behind a whole document; None: the tokenizer has no such token
    kind: Tokenizer
    key: str  # the same for the same tokenizer
    tokens_per_byte: float  # at most, of ordinary text
    is_worth_threads: bool

    def ids_of(self, texts: Sequence[bytes], *, are_documents: bool) -> Ids:
        """Of running text, or of documents, each with its end."""
        end = [np.array([self.end])] if are_documents and self.end is not None else []
        parts = [part for text in texts for part in (self.encode(text), *end)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def encoder(tokenizer: Tokenizer, path: Path | None = None) -> Encoder:
    """The tokenizer.json at `path`, else the model's own tokenizer."""
    if path is not None:
        return file_encoder(path)
    if tokenizer is Tokenizer.byte:
        return BYTES
    if tokenizer is Tokenizer.gpt2:
        return gpt2_encoder(gpt2_encoding())
    fix = "data.tokenizer=PATH/tokenizer.json, or ready token files with data=bin data.path=FOLDER"
    message = "text cannot be tokenised without its tokenizer"
    raise ConfigError([Problem(path="model.tokenizer", value=tokenizer.name, message=message, fix=fix)])


BYTES = Encoder(
    encode=lambda text: np.frombuffer(text, dtype=np.uint8),
    decode=lambda ids: bytes(min(i, 255) for i in ids).decode("utf-8", "replace"),
    vocab_size=256,
    end=ord("\n"),
    kind=Tokenizer.byte,
    key="byte",
    tokens_per_byte=1.0,
    is_worth_threads=False,
)


def gpt2_encoder(encoding: Any) -> Encoder:
    """<|endoftext|> ends a document, as in nanoGPT's prepare.py."""
    last = encoding.n_vocab - 1  # a model's vocabulary may be padded beyond it
    return Encoder(
        encode=lambda text: np.array(encoding.encode_ordinary(text.decode("utf-8", "replace")), dtype=np.uint32),
        decode=lambda ids: str(encoding.decode([min(i, last) for i in ids])),
        vocab_size=encoding.n_vocab,
        end=encoding.eot_token,
        kind=Tokenizer.gpt2,
        key="gpt2",
        tokens_per_byte=0.5,  # 0.25 in English, more in other languages
        is_worth_threads=True,
    )


def gpt2_encoding() -> Any:
    """tiktoken's GPT-2 BPE; it fetches the vocabulary once and keeps it in TIKTOKEN_CACHE_DIR."""
    import tiktoken

    try:
        return tiktoken.get_encoding("gpt2")
    except OSError as error:  # of which every network error of tiktoken's is a kind
        message = f"GPT-2's vocabulary (0.5 MB) is not in tiktoken's cache and cannot be fetched: {_first_line(error)}"
        fix = "connect once, or set TIKTOKEN_CACHE_DIR to a copy of another machine's; bytes need none: model=tiny"
        raise ConfigError([Problem(path="model.tokenizer", value="gpt2", message=message, fix=fix)]) from error


def file_encoder(path: Path) -> Encoder:
    """Special tokens are written behind documents only; in a text they are text."""
    try:
        library = importlib.import_module("tokenizers")  # an optional extra
    except ImportError as error:
        message = "tokenizer.json files are read with Hugging Face's tokenizers, which are not installed"
        fix = "pip install tokenizers"
        raise ConfigError([Problem(path="data.tokenizer", value=str(path), message=message, fix=fix)]) from error
    try:
        tokenizer = library.Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        vocab_size = largest_id(path) + 1
    except Exception as error:  # the library raises Exception itself
        fix = "data.tokenizer=PATH/tokenizer.json"
        message = f"cannot be read: {_first_line(error)}"
        raise ConfigError([Problem(path="data.tokenizer", value=str(path), message=message, fix=fix)]) from error
    return Encoder(
        encode=lambda text: np.array(
            tokenizer.encode(text.decode("utf-8", "replace"), add_special_tokens=False).ids, dtype=np.uint32
        ),
        decode=lambda ids: str(tokenizer.decode([i for i in ids if i < vocab_size], skip_special_tokens=False)),
        vocab_size=vocab_size,
        end=end_of_text(path),
        kind=Tokenizer.other,
        key=sha256_of_file(path),
        tokens_per_byte=1.0,  # whatever it is: a tokenizer of bytes has as many
        is_worth_threads=True,
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
