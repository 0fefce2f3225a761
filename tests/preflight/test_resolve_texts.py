"""Texts and lists of texts that can be shown, recorded and found."""

import os
from pathlib import Path

import pytest
from resolving import problem_of, problems_of, resolved

NOT_UTF8 = os.fsdecode(b"\xff\xfe")


@pytest.mark.parametrize(
    ("override", "path", "value", "fix"),
    [
        ("lowering.keep=[[1]]", "lowering.keep", "[[1]]", "'lowering.keep=[]'"),
        ("lowering.keep=[[batch],model]", "lowering.keep", "[[batch],model]", "'lowering.keep=[batch,model]'"),
        ("tracking.tags=[[a]]", "tracking.tags", "[[a]]", "'tracking.tags=[a]'"),
        ("tracking.tags=[a,[b,[c]]]", "tracking.tags", "[a,[b,[c]]]", "'tracking.tags=[a,b,c]'"),
    ],
)
def test_list_in_a_list_is_refused_with_a_flat_one(override, path, value, fix):
    problem = problem_of(override)
    assert (problem.path, problem.value, problem.fix) == (path, value, fix)
    resolved(override, problem.fix.strip("'"))


def test_providers_in_a_list_of_lists_are_refused():
    assert problem_of("action=compare", "compare.providers=[[aws]]").fix == "'compare.providers=[aws]'"


@pytest.mark.parametrize("option", ["data=text data.path", "runs_dir", "data.dir", "tracking.notes", "name"])
def test_bytes_that_are_no_utf8_are_refused_in_words_that_can_be_printed(tmp_path, option):
    (tmp_path / NOT_UTF8).write_text("hello " * 1000)
    *before, path = option.split(" ")
    place = f"{tmp_path}/{NOT_UTF8}" if path != "name" else f"a{NOT_UTF8}"
    problem = problem_of(*before, f'{path}="{place}"')
    assert problem.path == path
    assert problem.value.endswith(r"\xff\xfe")
    assert "no UTF-8" in str(problem).encode().decode()  # and no UnicodeEncodeError


def test_folder_we_are_in_counts_as_well(tmp_path, monkeypatch):
    folder = tmp_path / NOT_UTF8
    folder.mkdir()
    monkeypatch.chdir(folder)
    problems = problems_of("runs_dir=runs", "data.dir=here")
    assert [problem.path for problem in problems] == ["runs_dir", "data.dir"]
    assert all(r"\xff\xfe" in str(problem).encode().decode() for problem in problems)
    assert resolved("runs_dir=/tmp/runs", "data.dir=/tmp/data")


@pytest.mark.parametrize("name", ["日本語", "größe", "a" * 100])
def test_name_may_have_the_letters_of_any_language(name):
    assert resolved(f"name={name}").name == name


@pytest.mark.parametrize("name", ["a/b", "-a", "日" * 100, "a" * 101, "...", "/"])
def test_name_that_is_refused_comes_with_one_that_works(name):
    problem = problem_of(f"name={name}")
    assert resolved(f"name={name}", problem.fix).name == problem.fix.partition("=")[2]


@pytest.mark.parametrize(
    ("calibration", "cause"),
    [("", "needs ledger, off"), ("/nowhere/x", "/nowhere/x does not exist"), ("/dev/zero", "not a regular file")],
)
def test_ledger_that_is_not_there_is_refused(calibration, cause):
    problem = problem_of(f"calibration={calibration}")
    assert cause in problem.message
    assert problem.fix == "calibration=ledger"


def test_ledger_may_be_a_file_or_the_folder_of_runs_that_holds_it(tmp_path: Path):
    assert "ledger.jsonl does not exist" in problem_of(f"calibration={tmp_path}").message
    (tmp_path / "ledger.jsonl").touch()
    resolved(f"calibration={tmp_path}")
    resolved(f"calibration={tmp_path}/ledger.jsonl")


@pytest.mark.parametrize("option", ["runs_dir", "data.dir"])
def test_folder_needs_a_name(option):
    assert problem_of(f"{option}=").message == "needs a folder"


@pytest.mark.parametrize("path", ["lowering.keep", "lowering.rungs", "tracking.tags"])
def test_interpolation_that_leads_to_no_list_is_told(path):
    problem = problem_of(f"{path}=${{seed}}")
    assert problem.path == path
    assert "is a list of words" in problem.message
