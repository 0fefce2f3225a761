"""What cannot be shared out is never shared out by the launcher either."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from conf.choices import Optimizer, Parallel
from preflight.lowering.lower import lower
from preflight.plan import RunPlan
from preflight.sharing import can_share, sharing_faults


def test_whole_matrices_and_blocks_are_not_sliced(make_plan: Callable[..., RunPlan]):
    def shares(optimizer: Optimizer, parallel: Parallel) -> bool:
        return can_share(make_plan(trainer={"optimizer": optimizer, "parallel": parallel}).trainer)

    assert [shares(Optimizer.muon, parallel) for parallel in Parallel] == [True, True, False, False]
    assert [shares(Optimizer.adafactor, parallel) for parallel in Parallel] == [True, True, False, False]
    assert [shares(Optimizer.adamw_8bit, parallel) for parallel in Parallel] == [True, False, False, False]
    assert all(shares(optimizer, parallel) for optimizer in (Optimizer.adamw, Optimizer.sgd) for parallel in Parallel)


def test_lowering_never_combines_what_cannot_be_shared_out(make_plan: Callable[..., RunPlan]):
    """Muon's states do not fit two cards; slices are no way out, whole tensors on each rank are."""
    rungs = ("sharding", "optimizer", "batch")
    for optimizer in (Optimizer.muon, Optimizer.adamw):
        plan = make_plan(
            model="llama_7b", card="a100_80gb", n_gpus=8, micro_batch_size=1, trainer={"optimizer": optimizer},
            budget={"max_hours": None},
        )  # fmt: skip
        plan = replace(plan, lowering=replace(plan.lowering, rungs=rungs))
        lowered = lower(plan)
        assert not list(sharing_faults(getattr(lowered, "plan", plan).trainer))
