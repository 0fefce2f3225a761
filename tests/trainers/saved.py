"""What a run has saved, and whether two such things are the same."""

# ruff: noqa: TID253 - torch is what is saved
from __future__ import annotations

from typing import Any

import torch

from trainers import checkpoint
from trainers.job import Job


def last_state(job: Job) -> dict[str, Any]:
    path, passed_over = checkpoint.find_latest(job.run_dir)
    assert path is not None
    assert not passed_over
    return checkpoint.load(path)


def assert_identical(one: Any, other: Any) -> None:
    """Bit for bit, however deep."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_identical(one[key], other[key])
    elif isinstance(one, list):
        for left, right in zip(one, other, strict=True):
            assert_identical(left, right)
    else:
        assert one == other
