import json
import os
import subprocess
from array import array
from pathlib import Path

import pytest
from resolving import problem_of, problems_of, resolved

from conf.choices import DataKind, Tokenizer
from preflight.dataset import Manifest, write_manifest
from preflight.errors import ConfigError


@pytest.mark.parametrize(
    ("model", "kind"),
    [("tiny", DataKind.stdlib), ("gpt2_124m", DataKind.openwebtext), ("llama_7b", DataKind.bin)],
)
def test_auto_data_follows_the_tokenizer(model, kind):
    data = resolved(f"model={model}", "hw=8xh100").data
    assert (data.kind, data.prepared, data.n_train_tokens) == (kind, False, None)


def test_folder_is_absolute_and_named_after_the_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolved("data.dir=here").data.dir == str(tmp_path / "here" / "stdlib")


def test_data_made_otherwise_lies_elsewhere(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for folder in "ab":
        (tmp_path / folder / "text.txt").write_text("hello " * 1000)
    dirs = {
        resolved(*overrides).data.dir
        for overrides in (
            ["data=stdlib"],
            ["data=stdlib", "data.val_fraction=0.2"],
            ["data=stdlib", "model=gpt2_124m", "hw=4090"],
            ["data=text", f"data.path={tmp_path}/a/text.txt"],
            ["data=text", f"data.path={tmp_path}/b/text.txt"],
        )
    }
    assert len(dirs) == 5


def test_val_fraction_of_data_that_is_divided_already_is_refused():
    problem = problem_of("model=gpt2_124m", "hw=4090", "data.val_fraction=0.2")
    assert problem.path == "data.val_fraction"
    assert "has no effect with data=openwebtext" in problem.message


def test_text_may_be_a_file_or_a_folder(tmp_path):
    (tmp_path / "text.txt").write_text("hello " * 1000)
    assert resolved("data=text", f"data.path={tmp_path}/text.txt").data.source_path == f"{tmp_path}/text.txt"
    assert resolved("data=text", f"data.path={tmp_path}").data.source_path == str(tmp_path)


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        ("text", None, "does not exist"),
        ("text", {}, "has no file in it"),
        ("bin", {"train.bin": b""}, "has no val.bin"),
        ("bin", {}, "has no train.bin and no val.bin"),
    ],
)
def test_path_that_leads_to_nothing_is_told(tmp_path, kind, content, words):
    folder = tmp_path / "given"
    if content is not None:
        folder.mkdir()
        for name, data in content.items():
            (folder / name).write_bytes(data)
    problem = problem_of(f"data={kind}", f"data.path={folder}")
    assert problem.path == "data.path"
    assert words in problem.message


def test_empty_text_is_told(tmp_path):
    (tmp_path / "empty.txt").touch()
    assert "is empty" in problem_of("data=text", f"data.path={tmp_path}/empty.txt").message


@pytest.mark.parametrize("kind", ["text", "bin"])
def test_missing_path_is_told(kind):
    problem = problem_of(f"data={kind}")
    assert (problem.path, problem.value) == ("data.path", "null")
    assert f"data={kind} needs" in problem.message


def test_byte_tokens_for_a_bpe_model_are_fine_and_told(tmp_path):
    _token_files(tmp_path, 5000, 2000)
    _write_manifest(tmp_path, 5000, 2000)
    plan = resolved("model=gpt2_124m", "hw=4090", "data=bin", f"data.path={tmp_path}")
    assert plan.provenance["data.tokenizer"].endswith("which uses 256 of its 50,304 ids")


def _token_files(folder: Path, n_train: int, n_val: int, largest: int = 255) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, n in (("train.bin", n_train), ("val.bin", n_val)):
        (folder / name).write_bytes(array("H", [largest] * n).tobytes())


def _write_manifest(folder: Path, n_train: int, n_val: int) -> None:
    manifest = Manifest(
        name=folder.name,
        tokenizer=Tokenizer.byte,
        vocab_size=256,
        dtype="uint16",
        n_train_tokens=n_train,
        n_val_tokens=n_val,
        sha256={"train.bin": "0", "val.bin": "0"},
        source="test",
        created_at="2026-11-30T00:00:00+00:00",
    )
    write_manifest(folder, manifest)


def test_ready_token_files_are_counted(tmp_path):
    _token_files(tmp_path, 5000, 500)
    data = resolved("data=bin", f"data.path={tmp_path}").data
    assert (data.prepared, data.n_train_tokens, data.n_val_tokens, data.dtype) == (True, 5000, 500, "uint16")
    assert (data.dir, data.name) == (str(tmp_path), tmp_path.name)


def test_token_files_that_do_not_suit_the_model_are_told(tmp_path):
    _token_files(tmp_path, 5000, 100, largest=300)
    problems = problems_of("data=bin", f"data.path={tmp_path}")
    assert {problem.path for problem in problems} == {"data.path"}
    text = "\n".join(problem.message for problem in problems)
    assert "token id 300" in text
    assert "val.bin holds 100 tokens, a sequence needs 129" in text


def test_prepared_data_bounds_the_evaluation(tmp_path):
    folder = tmp_path / "stdlib"
    _token_files(folder, 50_000, 1000)
    _write_manifest(folder, 50_000, 1000)
    plan = resolved(f"data.dir={tmp_path}")
    assert (plan.data.prepared, plan.data.n_train_tokens) == (True, 50_000)
    assert plan.trainer.n_eval_sequences == 999 // 128


def test_torn_manifest_is_told(tmp_path):
    (tmp_path / "stdlib").mkdir()
    (tmp_path / "stdlib" / "manifest.json").write_text('{"manifest"')
    assert problem_of(f"data.dir={tmp_path}").path == "data.dir"


def test_text_that_has_no_sequence_to_hold_out_is_refused(tmp_path: Path):
    path = tmp_path / "text.txt"
    path.write_text("x" * 1289)  # a tenth is 128 bytes, a sequence of 128 needs 129
    with pytest.raises(ConfigError, match=r"1,289 bytes, of which data\.val_fraction=0\.1 holds out 128"):
        resolved("data=text", f"data.path={path}")
    path.write_text("x" * 1290)
    assert resolved("data=text", f"data.path={path}").data.n_source_bytes == 1290


def test_what_is_no_regular_file_is_refused_before_it_is_read(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (pipe, "/dev/zero"):
        assert problem_of("data=text", f"data.path={place}").message == f"{place} is not a regular file"
    assert problem_of("data=bin", f"data.path={pipe}").message == f"{pipe} is not a folder"
    assert "has no file in it" in problem_of("data=text", f"data.path={tmp_path}").message
    (tmp_path / "text.txt").write_text("hello " * 1000)
    assert resolved("data=text", f"data.path={tmp_path}").data.source_path == str(tmp_path)  # pipes are passed over


def test_folder_of_empty_files_is_refused(tmp_path: Path):
    (tmp_path / "text.txt").touch()
    (tmp_path / ".hidden").write_text("hello")
    assert "is empty" in problem_of("data=text", f"data.path={tmp_path}").message


def test_path_that_cannot_be_read_says_why(tmp_path: Path, monkeypatch):
    (tmp_path / "text.txt").write_text("hello " * 1000)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything
    expected = f"{tmp_path}/text.txt cannot be read: Permission denied"
    assert problem_of("data=text", f"data.path={tmp_path}").message == expected
    assert "does not exist" in problem_of("data=text", f"data.path=/{'a' * 5000}").message


def test_fix_of_torn_prepared_data_removes_the_folder(tmp_path: Path):
    folder = tmp_path / "my data" / "stdlib"
    _token_files(folder, 4999, 500)
    _write_manifest(folder, 5000, 500)
    problem = problem_of(f"data.dir='{tmp_path}/my data'")
    assert problem.fix == f"rm -r '{folder}' and prepare the data again"
    subprocess.run(problem.fix.partition(" and ")[0], shell=True, check=True)
    assert not resolved(f"data.dir='{tmp_path}/my data'").data.prepared
    folder.mkdir()
    (folder / "manifest.json").write_text("{")
    assert problem_of(f"data.dir='{tmp_path}/my data'").fix == f"rm -r '{folder}' and prepare the data again"


def test_fix_of_torn_ready_files_leaves_them_where_they_are(tmp_path: Path):
    command = ("data=bin", f"data.path={tmp_path}")
    _token_files(tmp_path, 5000, 500)
    _write_manifest(tmp_path, 6000, 500)
    without = f"rm {tmp_path}/manifest.json"
    assert problem_of(*command).fix == f"{without}: the tokens are counted as they are"
    (tmp_path / "manifest.json").write_text("{")
    problem = problem_of(*command)
    assert (problem.path, problem.fix) == ("data.path", without)
    subprocess.run(problem.fix, shell=True, check=True)
    assert resolved(*command).data.n_train_tokens == 5000
    (tmp_path / "train.bin").write_bytes(b"\0" * 9999)
    assert problem_of(*command).fix == "data.path=FOLDER of whole token files"


def write_tokenizer(path: Path, n_ids: int) -> Path:
    path.write_text(json.dumps({"model": {"vocab": {f"t{i}": i for i in range(n_ids)}}, "added_tokens": []}))
    return path


def test_own_tokenizer_suits_any_model_whose_vocabulary_is_large_enough(tmp_path: Path):
    text, tokenizer = tmp_path / "docs.jsonl", write_tokenizer(tmp_path / "tokenizer.json", 300)
    text.write_text('{"body": "hello"}\n' * 5000)
    own = ("data=text", f"data.path={text}", "data.field=body", f"data.tokenizer={tokenizer}")
    data = resolved("model=llama_1b", "hw=8xh100", *own).data
    assert (data.field, data.tokenizer_path) == ("body", str(tokenizer))
    assert data.dir != resolved("model=tiny", "model.vocab_size=320", *own[:3]).data.dir
    problem = problem_of("model=tiny", *own)
    assert (problem.path, problem.fix) == ("model.vocab_size", "model.vocab_size=320")
    without = problem_of("model=llama_1b", "hw=8xh100", *own[:3])
    assert "data.tokenizer=tokenizer.json" in without.fix


def test_tokenizer_and_field_belong_to_text(tmp_path: Path):
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json", 300)
    assert problem_of(f"data.tokenizer={tokenizer}").path == "data.tokenizer"
    assert problem_of("data.field=body").path == "data.field"
    (tmp_path / "text.txt").write_text("hello " * 1000)
    torn = problem_of("data=text", f"data.path={tmp_path}/text.txt", f"data.tokenizer={tmp_path}/text.txt")
    assert "cannot be read as a tokenizer.json" in torn.message


def test_bytes_of_compressed_tables_say_nothing_of_the_tokens(tmp_path: Path):
    (tmp_path / "a.parquet").write_bytes(b"x" * 5000)
    assert resolved("data=text", f"data.path={tmp_path}").data.n_source_bytes is None


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("[" * 100_000, "maximum recursion depth"),
        ('{"model": {"vocab": {"a": 1e400}}}', "cannot convert float infinity"),
        ('{"model": {"vocab": {"a": 3, "b": -5}}}', "ids are not within 0 and 9,999,999"),
        ('{"model": {"vocab": {"a": 99999999999}}}', "ids are not within 0 and 9,999,999"),
        (None, "not a regular file"),
    ],
)
def test_tokenizer_that_is_none_is_refused_and_not_waited_for(content: str | None, part: str, tmp_path: Path):
    tokenizer = tmp_path / "tokenizer.json"
    if content is None:
        os.mkfifo(tokenizer)
    else:
        tokenizer.write_text(content)
    (tmp_path / "docs.txt").write_text("text " * 2000)
    own = ("data=text", f"data.path={tmp_path / 'docs.txt'}", f"data.tokenizer={tokenizer}")
    problem = next(problem for problem in problems_of(*own) if problem.path == "data.tokenizer")
    assert part in problem.message
