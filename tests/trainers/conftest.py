"""A run of a minute fraction: a two-layer model on a text that it can learn."""

# ruff: noqa: TID253 - torch is what is tested here
from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conf.choices import DataKind
from preflight.plan import Precision, RunPlan
from trainers.job import Job

T = 16


@pytest.fixture(autouse=True)
def one_quiet_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small matmuls are slower on many threads; what a run sets globally is undone."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def write_pattern(folder: Path, n_train_tokens: int = 6000, n_val_tokens: int = 600) -> None:
    """Bytes that repeat with a little noise."""
    generator = np.random.default_rng(0)
    for name, n in (("train.bin", n_train_tokens), ("val.bin", n_val_tokens)):
        tokens = np.arange(n) * 7 % 31 + (generator.random(n) < 0.05)
        tokens.astype(np.uint16).tofile(folder / name)


@pytest.fixture
def small_plan(make_plan: Callable[..., RunPlan], tmp_path: Path) -> Callable[..., RunPlan]:
    """`make_plan` with data that exist and a model that trains in a blink; `dropout` and `trainer` override."""
    folder = tmp_path / "pattern"
    folder.mkdir()
    write_pattern(folder)

    def build(*, dropout: float = 0.0, trainer: dict[str, Any] | None = None, **changes: Any) -> RunPlan:
        settings = {"n_steps": 8, "micro_batch_size": 4, "sequence_length": T, "precision": Precision.fp32}
        often = {"eval_interval": 4, "n_eval_sequences": 8, "checkpoint_interval": 4, "log_interval": 1}
        plan = make_plan(model="tiny", card="cpu", trainer=often | (trainer or {}), **settings | changes)
        data = replace(plan.data, kind=DataKind.bin, dir=str(folder), dtype="uint16")
        return replace(plan, model=replace(plan.model, vocab_size=64, dropout=dropout), data=data)

    return build


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., Job]:
    """A job in a folder of its own."""

    def build(plan: RunPlan, name: str = "run", **changes: Any) -> Job:
        run_dir = tmp_path / name
        run_dir.mkdir(exist_ok=True)
        settings: dict[str, Any] = {
            "resume": False, "started_unix": time.time(), "flops_per_step": 1e9, "peak_flops_per_second": 1e12,
            "usd_per_hour": 3.6, "watts": None, "estimate": {}, "progress": io.StringIO(),
        }  # fmt: skip
        return Job(plan=plan, run_dir=run_dir, **settings | changes)

    return build
