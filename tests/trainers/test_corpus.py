"""Text from wherever people keep it, a piece at a time, and from any place on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preflight.errors import ConfigError
from trainers import corpus as module
from trainers.corpus import Corpus, dataset_corpus, stdlib_corpus, text_corpus


@pytest.fixture
def novel(tmp_path: Path) -> Path:
    path = tmp_path / "novel.txt"
    path.write_text("".join(f"line {i}\n" for i in range(1000)))
    return path


def test_text_corpus_of_a_folder_leaves_out_hidden_and_binary_files_and_ignores_where_it_lies(tmp_path: Path):
    orders = []
    for root in (tmp_path / "one", tmp_path / "two"):
        (root / "sub").mkdir(parents=True)
        (root / ".git").mkdir()
        for name in ("a.txt", "b.md", "sub/c.py", ".git/config"):
            (root / name).write_text(name)
        (root / "image.png").write_bytes(b"\x89PNG\0\0")
        (root / "empty.txt").touch()
        orders.append([path.relative_to(root).as_posix() for path in text_corpus("x", root).paths])
    assert sorted(orders[0]) == ["a.txt", "b.md", "sub/c.py"]
    assert orders[0] == orders[1]


def test_text_corpus_says_what_is_missing(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"data.path=.*nowhere: does not exist"):
        text_corpus("x", tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no text file there"):
        text_corpus("x", tmp_path)


def test_stdlib_corpus_has_megabytes_of_python_without_tests_and_packages():
    corpus = stdlib_corpus()
    assert corpus.n_units() > 5e6
    assert {path.suffix for path in corpus.paths} == {".py"}
    assert not [path for path in corpus.paths if {"site-packages", "test", "tests"} & set(path.parts)]
    assert corpus.paths == stdlib_corpus().paths


def test_corpus_pieces_end_at_lines_and_leave_nothing_out(novel: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 100)
    corpus = Corpus(name="x", source="", paths=(novel, novel))
    pieces = list(corpus.pieces())
    texts = [piece.texts[0] for piece in pieces]
    assert b"".join(texts) == 2 * novel.read_bytes()
    assert all(text.endswith(b"\n") for text in texts)
    assert max(map(len, texts)) < 120
    for i in (0, 30, 76, len(pieces) - 1):  # from any place on
        assert list(corpus.pieces(pieces[i].after)) == pieces[i + 1 :]


def write_lines(path: Path, n: int, field: str = "text") -> list[bytes]:
    path.write_text("".join(json.dumps({"id": i, field: f"document {i} é\n"}) + "\n" for i in range(n)) + "\n")
    return [f"document {i} é\n".encode() for i in range(n)]


def test_json_lines_are_documents_and_can_be_entered_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 200)
    path = tmp_path / "docs.jsonl"
    expected = write_lines(path, 100)
    corpus = text_corpus("x", path)
    pieces = list(corpus.pieces())
    assert len(pieces) > 10
    assert [text for piece in pieces for text in piece.texts] == expected
    assert all(piece.are_documents for piece in pieces)
    assert sum(piece.n_units for piece in pieces) == corpus.n_units()
    assert list(corpus.pieces(pieces[5].after)) == pieces[6:]


def test_json_lines_name_the_field_that_is_missing_and_the_line_that_is_torn(tmp_path: Path):
    path = tmp_path / "docs.jsonl"
    write_lines(path, 3, field="body")
    with pytest.raises(ConfigError, match=r"has no text in 'text'; there are body(.|\n)*data.field=body"):
        list(text_corpus("x", path).pieces())
    assert len(list(text_corpus("x", path, "body").pieces())) == 1
    path.write_text('{"text": "a"}\n{"text": ')
    with pytest.raises(ConfigError, match="has a line that is no JSON: line 2, ") as fault:
        list(text_corpus("x", path).pieces((0, 14)))  # where an earlier launch had stopped
    assert str(fault.value).count(str(path)) == 1


def test_parquet_rows_are_documents_and_can_be_entered_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(module, "N_ROWS", 7)
    texts = [f"document {i}" for i in range(50)]
    parquet.write_table(pa.table({"id": list(range(50)), "text": texts}), tmp_path / "a.parquet", row_group_size=20)
    (tmp_path / "b.txt").write_text("and a text\n")
    corpus = text_corpus("x", tmp_path)
    pieces = list(corpus.pieces())
    documents = [text.decode() for piece in pieces if piece.are_documents for text in piece.texts]
    assert documents == texts
    assert sum(piece.n_units for piece in pieces) == corpus.n_units()
    for i in range(len(pieces)):
        assert list(corpus.pieces(pieces[i].after)) == pieces[i + 1 :]
    with pytest.raises(ConfigError, match="there are id, text"):
        list(text_corpus("x", tmp_path / "a.parquet", "body").pieces())


def test_dataset_of_the_library_is_read_from_a_folder_and_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(module, "N_ROWS", 8)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    (tmp_path / "lines").mkdir()
    expected = write_lines(tmp_path / "lines" / "docs.jsonl", 20)
    rows = {"text": [text.decode() for text in expected]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "saved")
    for place in ("saved", "lines"):
        corpus = dataset_corpus("x", str(tmp_path / place), None, "train", "text")
        pieces = list(corpus.pieces())
        assert [text for piece in pieces for text in piece.texts] == expected
        assert (corpus.n_units(), [piece.n_units for piece in pieces]) == (20, [8, 8, 4])
        assert list(corpus.pieces(pieces[0].after)) == pieces[1:]
        assert corpus.n_text_bytes() >= sum(map(len, expected))
    with pytest.raises(ConfigError, match=r"data.field=text"):
        dataset_corpus("x", str(tmp_path / "saved"), None, "train", "body")
    with pytest.raises(ConfigError, match="--path NAME_OR_FOLDER"):
        dataset_corpus("x", str(tmp_path / "nowhere"), None, "train", "text")


def test_dataset_names_the_library_that_is_missing(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(module.importlib, "import_module", missing)
    with pytest.raises(ConfigError, match="pip install datasets"):
        dataset_corpus("x", "roneneldan/TinyStories", None, "train", "text")
    with pytest.raises(ConfigError, match="pip install pyarrow"):
        module.parquet_library()
