"""Compiled and not, in one run: the data, the masks of dropout and, within a tolerance, the losses are the same.

The graphs are inductor's, its random numbers too; PyTorch's own kernels run them, since 25 kernels in C++ take 40 s of
processor time to compile where none are kept from before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from preflight.plan import RunPlan
from tests.trainers.stopping_at import StopAt
from trainers.job import Job
from trainers.pretrain import train


def losses(job: Job) -> list[float]:
    rows = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row["train/loss"] for row in rows if "train/loss" in row]


@pytest.fixture
def kernels_of_torch() -> Iterator[None]:
    import torch._inductor.config as inductor  # seconds

    with inductor.patch(fallback_by_default=True):
        yield


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside torch, when it imports its compiler
@pytest.mark.usefixtures("kernels_of_torch")
@pytest.mark.parametrize("begins_compiled", [False, True])
def test_run_that_is_resumed_with_compile_swapped_keeps_its_losses(
    small_plan: Callable[..., RunPlan], make_job: Callable[..., Job], begins_compiled: bool
):
    plan = small_plan(n_steps=4, dropout=0.3, trainer={"eval_interval": 0, "learning_rate": 3e-3})
    eager = replace(plan, model=replace(plan.model, n_layer=1))
    compiled = replace(eager, trainer=replace(eager.trainer, compile=True))
    first, second = (compiled, eager) if begins_compiled else (eager, compiled)
    undisturbed, swapped = make_job(eager, "undisturbed"), make_job(first, "swapped", stop=StopAt(2))
    train(undisturbed)
    train(swapped)
    train(replace(make_job(second, "swapped"), resume=True))
    assert losses(swapped) == pytest.approx(losses(undisturbed), abs=1e-5)  # other masks: 0.05 and more
    other = make_job(replace(eager, seed=eager.seed + 1), "other")
    train(other)
    assert losses(other) != pytest.approx(losses(undisturbed), abs=1e-2)
