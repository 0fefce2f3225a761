"""Real command lines in real processes, each in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A model of seconds: real text, real steps, few of them.
SMALL = ("model.n_layer=2", "model.n_embd=32", "model.n_head=2", "trainer.sequence_length=32",
         "trainer.micro_batch_size=4", "trainer.tokens_per_step=256")  # fmt: skip


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.out)


@dataclass(frozen=True)
class Desk:
    """A working folder with prepared data and its own runs."""

    folder: Path

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def environment(self) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB_", "PREFLIGHT_", "RANK", "WORLD_"))}
        return clean | {"PYTHONPATH": str(ROOT), "HOME": str(self.folder), "OMP_NUM_THREADS": "1"}

    def arguments(self, *overrides: str) -> list[str]:
        return [str(ROOT / "launch.py"), f"runs_dir={self.runs}", f"data.dir={self.folder / 'data'}", *overrides]

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *command], cwd=self.folder, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *command: str, timeout: float = 120) -> Done:
        process = self.start(*command)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return Done(process.returncode, out, err)

    def launch(self, *overrides: str) -> Done:
        return self.run(*self.arguments(*overrides))

    def frozen(self, *overrides: str) -> Done:
        """`resume=` and `plan=` take no data folder: the plan has it."""
        return self.run(str(ROOT / "launch.py"), f"runs_dir={self.runs}", *overrides)

    def run_dirs(self) -> list[Path]:
        return sorted(path.parent for path in self.runs.glob("*/plan.json"))

    def ledger(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.runs / "ledger.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def text_of_seconds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text that is prepared in no time: this project's own sources."""
    path = tmp_path_factory.mktemp("text") / "sources.txt"
    path.write_text("\n".join(p.read_text() for p in sorted((ROOT / "preflight").glob("*.py"))))
    return path


@dataclass(frozen=True)
class Finished:
    """A command that trained, and its desk; for tests that change nothing there."""

    desk: Desk
    done: Done

    @property
    def run_dir(self) -> Path:
        (run_dir,) = self.desk.run_dirs()
        return run_dir


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, text_of_seconds: Path) -> Finished:
    """One tracked run of 20 steps for all tests: starting it takes longer than looking at it."""
    desk = Desk(tmp_path_factory.mktemp("finished"))
    data = ("data=text", f"data.path={text_of_seconds}")
    done = desk.launch(*SMALL, *data, "trainer.n_steps=20", "tracking=wandb", "tracking.notes=baseline")
    assert done.code == 0, done.err
    return Finished(desk, done)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def small(text_of_seconds: Path) -> Callable[..., tuple[str, ...]]:
    """Overrides of a run that takes seconds."""

    def overrides(*more: str, n_steps: int = 20) -> tuple[str, ...]:
        data = ("data=text", f"data.path={text_of_seconds}")
        quiet = () if any(word.startswith("tracking=") for word in more) else ("tracking=none",)
        return (*SMALL, *data, f"trainer.n_steps={n_steps}", *quiet, *more)

    return overrides
