"""The manifest of prepared data and the cheap look at a data folder."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from conf.choices import DataKind, Tokenizer
from preflight.dataset import (
    Manifest,
    folder_problems,
    largest_sampled_id,
    manifest_of_foreign_files,
    prepared_name,
    read_manifest,
    sha256_of_file,
    smallest_dtype,
    write_manifest,
)
from preflight.errors import ConfigError


def _write_tokens(path: Path, ids: list[int], typecode: str = "H") -> None:
    path.write_bytes(array(typecode, ids).tobytes())


def _prepared(folder: Path, n_train: int = 90, n_val: int = 10) -> Manifest:
    _write_tokens(folder / "train.bin", [i % 256 for i in range(n_train)])
    _write_tokens(folder / "val.bin", [i % 256 for i in range(n_val)])
    manifest = Manifest(
        name="stdlib",
        tokenizer=Tokenizer.byte,
        vocab_size=256,
        dtype="uint16",
        n_train_tokens=n_train,
        n_val_tokens=n_val,
        sha256={name: sha256_of_file(folder / name) for name in ("train.bin", "val.bin")},
        source="Python 3.11.7 standard library",
        created_at="2026-11-30T09:00:00+00:00",
    )
    write_manifest(folder, manifest)
    return manifest


def _messages(folder: Path, manifest: Manifest, vocab_size: int = 256, sequence_length: int = 8) -> list[str]:
    problems = folder_problems(folder, manifest, vocab_size=vocab_size, sequence_length=sequence_length)
    return [problem.message for problem in problems]


def test_manifest_comes_back_as_written(tmp_path: Path):
    manifest = _prepared(tmp_path)
    assert read_manifest(tmp_path) == manifest
    assert _messages(tmp_path, manifest) == []


def test_manifest_is_none_when_the_folder_is_missing_or_bare(tmp_path: Path):
    assert read_manifest(tmp_path / "nothing") is None
    assert read_manifest(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('{"schema_version": 1, "manif', "torn"),
        ("[1, 2]", "not a manifest of ours"),
        ('{"tokens": 3}', "'schema_version'"),
        ('{"schema_version": 99, "manifest": {}}', "schema_version 99"),
        ('{"schema_version": 1, "manifest": {"name": "x"}}', "'tokenizer'"),
    ],
)
def test_manifest_says_why_when_torn_or_foreign(tmp_path: Path, text: str, cause: str):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_manifest(tmp_path)
    assert cause in str(caught.value)
    assert str(tmp_path / "manifest.json") in str(caught.value)


def test_manifest_refuses_an_unknown_dtype(tmp_path: Path):
    write_manifest(tmp_path, replace(_prepared(tmp_path), dtype="int8"))
    with pytest.raises(ConfigError, match="uint16, uint32"):
        read_manifest(tmp_path)


def test_folder_problems_names_a_missing_and_a_torn_file(tmp_path: Path):
    manifest = _prepared(tmp_path)
    (tmp_path / "train.bin").write_bytes(b"\0" * 179)  # 90 tokens of 2 bytes, one byte lost
    (tmp_path / "val.bin").unlink()
    train, val = _messages(tmp_path, manifest)
    assert train.startswith("train.bin has 179 bytes, 90 uint16 tokens take 180")
    assert val == "val.bin is missing"


def test_folder_problems_needs_one_token_more_than_a_sequence_in_both_files(tmp_path: Path):
    manifest = _prepared(tmp_path, n_train=90, n_val=10)
    assert _messages(tmp_path, manifest, sequence_length=9) == []
    assert _messages(tmp_path, manifest, sequence_length=10) == ["val.bin holds 10 tokens, a sequence needs 11"]
    fixes = folder_problems(tmp_path, manifest, vocab_size=256, sequence_length=10)
    assert fixes[0].fix == "trainer.sequence_length=9"


def test_folder_problems_names_an_empty_file(tmp_path: Path):
    manifest = _prepared(tmp_path, n_train=0)
    assert _messages(tmp_path, manifest) == ["train.bin holds 0 tokens, a sequence needs 9"]


def test_folder_problems_holds_the_ids_against_the_vocabulary(tmp_path: Path):
    manifest = replace(_prepared(tmp_path), vocab_size=50257)
    assert _messages(tmp_path, manifest) == ["token ids go up to 50,256, the model's vocabulary has 256"]
    assert _messages(tmp_path, manifest, vocab_size=50304) == []


def test_foreign_files_are_counted_and_sampled(tmp_path: Path):
    _write_tokens(tmp_path / "train.bin", [7] * 70_000 + [400])
    _write_tokens(tmp_path / "val.bin", [7] * 100)
    manifest = manifest_of_foreign_files(tmp_path, vocab_size=256)
    assert manifest is not None
    assert (manifest.n_train_tokens, manifest.n_val_tokens, manifest.dtype) == (70_001, 100, "uint16")
    _write_tokens(tmp_path / "train.bin", [400] + [7] * 70_000)
    assert _messages(tmp_path, manifest) == ["train.bin holds token id 400, the model's vocabulary has 256"]


def test_foreign_files_are_nothing_when_one_is_missing(tmp_path: Path):
    _write_tokens(tmp_path / "train.bin", [1, 2, 3])
    assert manifest_of_foreign_files(tmp_path, vocab_size=256) is None


def test_largest_sampled_id_reads_four_byte_ids(tmp_path: Path):
    _write_tokens(tmp_path / "train.bin", [1, 128_000, 5], typecode="I")
    assert largest_sampled_id(tmp_path / "train.bin", "uint32") == 128_000


def test_smallest_dtype_switches_above_65536_ids():
    assert [smallest_dtype(n) for n in (256, 50257, 65536, 65537)] == ["uint16", "uint16", "uint16", "uint32"]


def test_edited_text_is_prepared_anew(tmp_path: Path):
    text = tmp_path / "novel.txt"
    text.write_text("once")
    before = prepared_name(DataKind.text, Tokenizer.byte, 0.1, text)
    assert prepared_name(DataKind.text, Tokenizer.byte, 0.1, text) == before
    text.write_text("once upon")
    assert prepared_name(DataKind.text, Tokenizer.byte, 0.1, text) != before


def test_folder_of_texts_is_prepared_anew_when_a_file_comes(tmp_path: Path):
    (tmp_path / "one.txt").write_text("one")
    before = prepared_name(DataKind.text, Tokenizer.byte, 0.1, tmp_path)
    (tmp_path / "two.txt").write_text("two")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    assert prepared_name(DataKind.text, Tokenizer.byte, 0.1, tmp_path) != before


def test_tokenizer_and_split_have_folders_of_their_own():
    assert prepared_name(DataKind.shakespeare, Tokenizer.byte, 0.1, None) == "shakespeare"
    assert prepared_name(DataKind.shakespeare, Tokenizer.gpt2, 0.05, None) == "shakespeare-gpt2-val0.05"
    assert prepared_name(DataKind.openwebtext, Tokenizer.gpt2, 0.0005, None) == "openwebtext"
