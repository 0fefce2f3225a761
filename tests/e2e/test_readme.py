"""Every command of the README is run as it stands there; what trains for minutes is cut to seconds by overrides."""

import re
import shlex
import sys
from collections.abc import Callable

from scripts.readme_bills import with_bills
from tests.e2e.conftest import ROOT, Desk

Overrides = Callable[..., tuple[str, ...]]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def test_readme_commands_do_what_they_promise(desk: Desk, small: Overrides) -> None:
    ran = 0
    for words in commands():
        program, *arguments = words
        if program == "make":  # the suite itself runs under one of the two
            assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
            continue
        before = ["-m", "torch.distributed.run", arguments.pop(0)] if program == "torchrun" else []
        script, *overrides = arguments
        extra = [f"runs_dir={desk.runs}"]
        if script == "scripts/report.py":
            extra = [str(desk.runs)]
        elif script == "scripts/import_wandb.py":
            extra = ["--runs-dir", str(desk.runs)]
        elif script == "scripts/sample.py":
            extra = ["--runs-dir", str(desk.runs), "--tokens", "20"]
        elif not {"dry_run=true", "--help", "resume=latest", "action=compare"}.intersection(overrides):
            tracked = () if overrides else ("tracking=wandb",)  # one run, for the commands that read its files
            extra += [f"data.dir={desk.folder / 'data'}", *small(*tracked)]
        done = desk.run(*before, str(ROOT / script), *overrides, *extra)
        refused = "hw=1x4090" in " ".join(overrides)
        assert done.code == (3 if refused else 0), (words, done.out, done.err)
        ran += 1
    assert ran >= 10


def test_readme_bills_are_the_ones_that_are_printed() -> None:
    assert README.count("\nGO ") + README.count("\nNO ") == 2
    assert with_bills(README) == README


def test_readme_python_runs() -> None:
    (block,) = blocks("python")
    scope: dict[str, object] = {}
    exec(block, scope)
    assert scope["answer"]
    assert sys.modules["launch"]
