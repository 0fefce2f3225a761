"""Text to ids and back, by bytes, by GPT-2's BPE and by a tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.choices import Tokenizer
from preflight.dataset import read_manifest
from preflight.errors import ConfigError
from preflight.tokenizer_file import end_of_text, largest_id
from trainers.corpus import text_corpus
from trainers.encoders import BYTES, encoder, gpt2_encoder
from trainers.prepare import prepare


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """Words of a small text, and a token for the end of one."""
    library: Any = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "the": 1, "cat": 2, "sat": 3}
    tokenizer = library.Tokenizer(library.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_bytes_end_a_document_with_a_line():
    assert BYTES.ids_of([b"ab", "é".encode()], are_documents=True).tolist() == [97, 98, 10, 0xC3, 0xA9, 10]
    assert BYTES.ids_of([b"ab"], are_documents=False).tolist() == [97, 98]
    assert BYTES.ids_of([], are_documents=True).tolist() == []
    assert BYTES.decode([97, 300]) == "a\ufffd"


def test_gpt2_ends_a_document_with_its_own_token():
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([i]): i for i in range(256)}  # the real one is not to be had offline
    encoding = tiktoken.Encoding("bytes", pat_str=r".", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 256})
    words = gpt2_encoder(encoding)
    assert words.ids_of([b"hi", b"<|endoftext|>"], are_documents=True).tolist()[:3] == [104, 105, 256]
    assert words.ids_of([b"<|endoftext|>"], are_documents=False).max() < 256  # in a text it is text
    assert (words.vocab_size, words.decode([104, 999])) == (257, "h<|endoftext|>")


def test_tokenizer_file_encodes_decodes_and_ends_documents(tokenizer_file: Path):
    words = encoder(Tokenizer.byte, tokenizer_file)
    assert words.ids_of([b"the cat", b"sat dog"], are_documents=True).tolist() == [1, 2, 4, 3, 0, 4]
    assert (words.vocab_size, words.end, words.decode([1, 2, 77])) == (5, 4, "the cat")
    assert (largest_id(tokenizer_file), end_of_text(tokenizer_file)) == (4, 4)


def test_tokenizer_file_prepares_documents(tokenizer_file: Path, tmp_path: Path):
    path = tmp_path / "docs.jsonl"
    path.write_text(json.dumps({"text": "the cat sat"}) * 1 + "\n" + (json.dumps({"text": "the cat"}) + "\n") * 9)
    words = encoder(Tokenizer.other, tokenizer_file)
    folder = tmp_path / "d"
    manifest = prepare(text_corpus("docs", path), folder, words, val_fraction=0.2, say=lambda _: None)
    train, val = (np.fromfile(folder / name, dtype="<u2").tolist() for name in ("train.bin", "val.bin"))
    assert train[:7] == [1, 2, 3, 4, 1, 2, 4]
    assert val == [1, 2, 4] * 2
    assert (manifest.tokenizer, manifest.vocab_size, manifest.dtype) == (Tokenizer.other, 5, "uint16")
    assert manifest.tokenizer_sha256 == words.key
    assert read_manifest(folder) == manifest


def test_encoder_says_what_it_needs(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"data.tokenizer=PATH/tokenizer.json"):
        encoder(Tokenizer.other)
    torn = tmp_path / "tokenizer.json"
    torn.write_text("{")
    pytest.importorskip("tokenizers")
    with pytest.raises(ConfigError, match="cannot be read"):
        encoder(Tokenizer.byte, torn)


@pytest.mark.parametrize("text", ["[]", "{}", '{"model": {"vocab": 3}}', '{"model": {"vocab": {}}}'])
def test_tokenizer_file_that_is_none_is_a_value_error(tmp_path: Path, text: str):
    path = tmp_path / f"{abs(hash(text))}.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"not a tokenizer.json"):
        largest_id(path)


def test_tokenizer_file_of_a_unigram_model_is_a_list(tmp_path: Path):
    path = tmp_path / "unigram.json"
    path.write_text(json.dumps({"model": {"vocab": [["<unk>", 0.0], ["</s>", 0.0], ["a", -1.0]]}, "added_tokens": []}))
    assert (largest_id(path), end_of_text(path)) == (2, 1)
