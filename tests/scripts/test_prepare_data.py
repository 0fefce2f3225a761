"""The program as users call it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from conf.choices import DataKind, Family, Tokenizer
from conf.schema import DataConfig, ModelConfig, RecipeConfig
from launch import bill
from preflight.dataset import read_manifest
from preflight.resolve.data import resolve_data
from preflight.resolve.resolution import Resolution
from scripts.prepare_data import folder_of, main, parse


@pytest.fixture
def novel(tmp_path: Path) -> Path:
    path = tmp_path / "novel.txt"
    path.write_text("It was a dark and stormy night.\n" * 100)
    return path


def test_prepare_data_prepares_text_and_says_what_it_made(
    novel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["text", "--path", str(novel), "--dir", str(tmp_path / "data"), "--val-fraction", "0.25"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "2,400 training and 800 held-out tokens (byte)" in said
    assert read_manifest(folder_of(parse(arguments))) is not None
    assert main(arguments) == 0  # again: nothing to do
    assert capsys.readouterr().out == said


def test_prepare_data_takes_a_file_or_folder_for_text_and_a_saved_dataset_for_one(novel: Path, tmp_path: Path):
    for arguments in ([str(novel)], ["--path", str(novel)], ["text", "--path", str(novel)]):
        options = parse([*arguments, "--dir", "/data"])
        assert (options.name, options.path) == ("text", novel)
        assert folder_of(options) == folder_of(parse(["text", "--path", str(novel), "--dir", "/data"]))
    assert parse([str(tmp_path)]).name == "text"
    (tmp_path / "dataset_info.json").touch()
    assert parse([str(tmp_path)]).name == "hf"


def test_prepare_data_speaks_of_its_own_options_and_ends_with_the_command_that_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    documents = tmp_path / "my docs.jsonl"
    documents.write_text('{"body": "It was a dark and stormy night."}\n' * 100)
    arguments = [str(documents), "--dir", str(tmp_path / "data")]
    assert main(arguments) == 2
    assert "--field text: " in (said := capsys.readouterr().err)
    assert "To fix: --field body" in said
    assert main([*arguments, "--field", "body"]) == 0
    words = shlex.split(capsys.readouterr().out.splitlines()[-1].removesuffix(" ..."))
    assert words[:4] == ["python", "launch.py", "data=text", f"data.path={documents}"]
    assert bill(*words[2:]).plan.data.prepared


def test_prepare_data_exits_with_cause_and_cure_when_there_is_no_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name in ("shakespeare", "openwebtext", "fineweb_edu"):
        assert main([name, "--dir", str(tmp_path), "--base-url", "http://127.0.0.1:1"]) == 2
        said = capsys.readouterr().err
        assert "http://127.0.0.1:1/" in said
        assert "cannot be reached" in said
        assert "To fix:" in said
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["text"],
        ["stdlib", "--path", "x"],
        ["openwebtext", "--tokenizer", "byte"],
        ["stdlib", "--val-fraction", "1"],
        ["wikipedia"],
        ["wikipedia", "--path", "x"],
        [],
    ],
)
def test_prepare_data_refuses_options_that_contradict(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "tokenizer", "val_fraction"),
    [
        (DataKind.stdlib, Tokenizer.byte, 0.1),
        (DataKind.stdlib, Tokenizer.gpt2, 0.05),
        (DataKind.text, Tokenizer.byte, 0.05),
        (DataKind.text, Tokenizer.gpt2, 0.1),
        (DataKind.shakespeare, Tokenizer.gpt2, 0.1),
        (DataKind.openwebtext, Tokenizer.gpt2, 0.1),
    ],
)
def test_prepare_data_puts_it_where_the_launcher_looks(
    kind: DataKind, tokenizer: Tokenizer, val_fraction: float, novel: Path
):
    path = novel if kind is DataKind.text else None
    data = DataConfig(kind=kind, path=str(novel) if path else None, dir="/data", val_fraction=val_fraction)
    recipe = RecipeConfig(sequence_length=8, micro_batch_size=1, tokens_per_step=8, total_tokens=8, learning_rate=1e-3)
    model = ModelConfig(
        name="m", family=Family.gpt2, n_layer=1, n_head=1, n_embd=8, vocab_size=50304, tokenizer=tokenizer,
        tied_head=True, recipe=recipe,
    )  # fmt: skip
    arguments = [kind.name, "--dir", "/data", "--tokenizer", tokenizer.name, "--val-fraction", str(val_fraction)]
    arguments += ["--path", str(novel)] if path else []
    plan = resolve_data(data, model, 8, Resolution())
    assert plan is not None
    assert folder_of(parse(arguments)) == Path(plan.dir)
