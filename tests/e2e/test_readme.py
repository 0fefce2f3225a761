"""Every command of the README is run as it stands there; what trains for minutes is cut to seconds by overrides."""

import re
import shlex
import sys
from collections.abc import Callable

import pytest

from scripts.readme_bills import with_bills
from tests.e2e.conftest import ROOT, Desk, Done
from tests.e2e.test_ranks import curve

Overrides = Callable[..., tuple[str, ...]]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def kind(words: list[str]) -> str:
    """Which test runs it; what fits nowhere is run with those that need a run."""
    program, *arguments = words
    if program == "make":  # the suite itself runs under one of them
        return "make"
    if "action=calibrate" in arguments:  # as the only one, in tests/e2e/test_calibrate.py
        return "calibration"
    return "bill" if {"dry_run=true", "--help", "action=compare"}.intersection(arguments) else "run"


def commands_of(one: str) -> list[list[str]]:
    return [words for words in commands() if kind(words) == one]


def run(desk: Desk, words: list[str], *extra: str) -> Done:
    """As it stands there, and where this test keeps its files."""
    program, *arguments = words
    before = ["-m", "torch.distributed.run", arguments.pop(0)] if program == "torchrun" else []
    script, *overrides = arguments
    done = desk.run(*before, str(ROOT / script), *overrides, *extra)
    refused = "hw=1x4090" in " ".join(overrides)
    assert done.code == (3 if refused else 0), (words, done.out, done.err)
    return done


def test_readme_targets_are_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for _, target in commands_of("make"))
    assert len(commands()) >= 18
    assert commands_of("calibration") == [["python", "launch.py", "action=calibrate"]]


def test_readme_bills_do_what_they_promise(desk: Desk) -> None:
    for words in commands_of("bill"):
        run(desk, words, f"runs_dir={desk.runs}")
    assert len(commands_of("bill")) >= 8


def test_torchrun_and_launch_and_one_rank_train_alike(desk: Desk, small: Overrides) -> None:
    """All commands of the README that need a run, in its order; the three that train are compared."""
    told = []
    for words in commands_of("run"):
        script = next(word for word in words if word.endswith(".py"))
        extra = [f"runs_dir={desk.runs}"]
        if script == "scripts/report.py":
            extra = [str(desk.runs)]
        elif script == "scripts/import_wandb.py":
            extra = ["--runs-dir", str(desk.runs)]
        elif script == "scripts/sample.py":
            extra = ["--runs-dir", str(desk.runs), "--tokens", "20"]
        elif "resume=latest" not in words:
            tracked = () if told else ("tracking=wandb",)  # one run, for the commands that read its files
            alike = ("trainer.log_interval=1", "trainer.precision=fp32")
            extra += [f"data.dir={desk.folder / 'data'}", *small(*tracked, *alike)]
            told.append(run(desk, words, *extra).out.count("estimated"))
            continue
        run(desk, words, *extra)
    one, two, three = (curve(run_dir) for run_dir in desk.run_dirs())
    assert two == three
    assert one == pytest.approx(two, abs=2e-4)  # sums in another order
    assert told[1] == told[2]
    worlds = [line["plan"]["hw"]["n_gpus_per_node"] for line in desk.ledger()[:3]]
    assert worlds == [1, 2, 2]


def test_readme_bills_are_the_ones_that_are_printed() -> None:
    assert README.count("\nGO ") + README.count("\nNO ") == 2
    assert with_bills(README) == README


def test_readme_python_runs() -> None:
    (block,) = blocks("python")
    scope: dict[str, object] = {}
    exec(block, scope)
    assert scope["answer"]
    assert sys.modules["launch"]
