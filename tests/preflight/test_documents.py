"""A wrong field is found before anything starts, in the first lines of the files alone."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from resolving import problem_of, resolved

from preflight import documents
from preflight.documents import first_fault
from preflight.errors import Problem


def write_lines(path: Path, *names: str, n: int = 3) -> Path:
    path.write_text("".join(json.dumps({"id": i, **dict.fromkeys(names, "words")}) + "\n" for i in range(n)))
    return path


def test_bill_names_the_fields_that_hold_text(tmp_path: Path):
    path = write_lines(tmp_path / "a.jsonl", "body", "title", n=2000)
    problem = problem_of("data=text", f"data.path={path}")
    assert (problem.path, problem.value, problem.fix) == ("data.field", "text", "data.field=body")
    assert problem.message.endswith("a.jsonl has no text in 'text'; there are body, title")
    assert resolved("data=text", f"data.path={path}", problem.fix).data.field == "body"


def test_first_fault_looks_into_every_kind_of_file_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "notes.txt").write_text("no JSON\n")
    write_lines(tmp_path / "a.jsonl", "text")
    assert first_fault(tmp_path, "text") is None
    torn = tmp_path / "b.ndjson"
    torn.write_text("\n{'text': 1}\n")
    assert "has a line that is no JSON" in problem_in(tmp_path).message
    torn.write_text('["text"]\n')
    assert problem_in(tmp_path).fix == "another file"
    torn.unlink()
    (tmp_path / "c.parquet").write_bytes(b"PAR1")
    reader = SimpleNamespace(read_schema=lambda path: SimpleNamespace(names=["id", "content"]))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", reader)
    monkeypatch.setattr(documents, "import_module", sys.modules.__getitem__)
    assert problem_in(tmp_path).message.endswith("c.parquet has no text in 'text'; there are id, content")


def test_a_torn_line_is_the_only_fault_of_a_short_file(tmp_path: Path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"body": 1}\nnot\n')
    (tmp_path / "good.jsonl").write_text('{"body": "x"}\n')
    problem = problem_of("data=text", f"data.path={path}", "data.field=body")
    assert "'body'" in problem.message  # line 1, and no second fault: it is too short as well
    path.write_text('{"body": "x"}\n\nnot\n')
    problem = problem_of("data=text", f"data.path={path}", "data.field=body")
    assert problem.value == str(path)
    assert "line 3, which begins with 'not\\n' (Expecting value at column 1)" in problem.message
    assert (str(path) in problem.message, problem.fix) == (False, "mend or delete line 3")


def problem_in(path: Path) -> Problem:
    fault = first_fault(path, "text")
    assert fault is not None
    return fault


def test_first_fault_reads_few_lines_and_no_part_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_lines(tmp_path / "a.jsonl", "text", n=documents.N_LINES)
    with path.open("a") as file:
        file.write("no JSON\n")
    assert first_fault(path, "text") is None
    monkeypatch.setattr(documents, "MAX_BYTES", 10)
    assert first_fault(path, "body") is None


def test_field_of_running_text_has_no_effect(tmp_path: Path):
    (tmp_path / "novel.txt").write_text("It was a dark and stormy night.\n" * 1000)
    own = ("data=text", f"data.path={tmp_path}/novel.txt")
    assert problem_of(*own, "data.field=body").fix == "data.field=text"
    assert resolved(*own).data.field == "text"


def test_a_single_file_that_is_no_text_is_refused_before_it_is_trained_on(tmp_path: Path):
    path = tmp_path / "corpus.txt.gz"
    path.write_bytes(b"\x1f\x8b\x08\0" + bytes(range(256)) * 100)
    problem = problem_of("data=text", f"data.path={path}", "model=tiny")
    assert (problem.path, problem.fix) == ("data.path", "unpack or convert it, or data=stdlib")


@pytest.mark.parametrize(
    ("name", "fix"),
    [("the text", "'data.field=\"the text\"'"), ("a,b", "'data.field=\"a,b\"'"), ("", None), ("\x1b[31m", None)],
)
def test_fields_are_named_as_they_can_be_typed(tmp_path: Path, name: str, fix: str | None):
    problem = first_fault(write_lines(tmp_path / "a.jsonl", name), "text")
    assert problem is not None
    assert problem.fix == (fix or "another file")
    assert problem.message.isprintable()
    if fix is not None:
        assert (
            resolved(
                "data=text",
                f"data.path={tmp_path}",
                *shlex.split(fix),
                "data.val_fraction=0.5",
                "trainer.sequence_length=8",
            ).data.field
            == name
        )
