# ruff: noqa: TID253 - torch is what is tested here
"""Does every rank see what it should, in an order that nothing but seed and step decides?"""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.errors import ConfigError
from preflight.machine.snapshot import World
from preflight.plan import RunPlan
from trainers.data import TrainStream, eval_batches, permute
from trainers.gpt import IGNORED
from trainers.memory_meters import resident_bytes

CPU = torch.device("cpu")
T = 8
N_TRAIN_WINDOWS, N_VAL_WINDOWS = 37, 11


def world_of(rank: int = 0, world_size: int = 1) -> World:
    return World(rank=rank, local_rank=rank, world_size=world_size, local_world_size=world_size)


@pytest.fixture
def plan(make_plan: Callable[..., RunPlan], tmp_path: Path) -> RunPlan:
    """Token i of the training file is i, so that a batch says where it came from."""
    np.arange(N_TRAIN_WINDOWS * T + 3, dtype=np.uint16).tofile(tmp_path / "train.bin")
    np.arange(N_VAL_WINDOWS * T + 1, dtype=np.uint16).tofile(tmp_path / "val.bin")
    plan = make_plan(model="tiny", card="cpu", micro_batch_size=2, grad_accum_steps=6, sequence_length=T)
    model = replace(plan.model, vocab_size=2**17)
    return replace(plan, model=model, data=replace(plan.data, dir=str(tmp_path), dtype="uint16"))


def split(plan: RunPlan, micro_batch_size: int, world_size: int) -> RunPlan:
    n_sequences = plan.trainer.tokens_per_step // T
    trainer = replace(
        plan.trainer,
        micro_batch_size=micro_batch_size,
        grad_accum_steps=n_sequences // (micro_batch_size * world_size),
    )
    return replace(plan, trainer=trainer)


def windows_of_step(plan: RunPlan, step: int, world_size: int = 1) -> list[int]:
    streams = [TrainStream(plan, world_of(rank, world_size), CPU) for rank in range(world_size)]
    firsts = [
        stream.micro_batch(step, micro_step)[0][:, 0]
        for micro_step in range(plan.trainer.grad_accum_steps)
        for stream in streams
    ]
    return [int(first) // T for first in torch.cat(firsts)]


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 3000), seed=st.integers(0, 2**32), epoch=st.integers(0, 1000))
def test_permute_reaches_every_window_once_an_epoch(n: int, seed: int, epoch: int):
    index = np.arange(n)
    assert sorted(permute(index, n, seed, np.full(n, epoch))) == list(index)


def test_permute_differs_between_epochs_and_seeds_and_leaves_no_pattern():
    n = 10_000
    index = np.arange(n)
    orders = [permute(index, n, seed, np.full(n, epoch)) for seed, epoch in ((1, 0), (1, 1), (2, 0))]
    for i, order in enumerate(orders):
        assert abs(np.corrcoef(index, order)[0, 1]) < 0.05  # a random order: 0 +- 0.01
        assert all((order == other).mean() < 0.01 for other in orders[i + 1 :])


@pytest.mark.parametrize(("micro_batch_size", "world_size"), [(12, 1), (1, 1), (3, 2), (1, 4), (2, 3)])
def test_stream_is_the_same_for_any_ranks_and_micro_batch(plan: RunPlan, micro_batch_size: int, world_size: int):
    for step in (0, 2, 3):  # 12 sequences a step, 37 windows: step 3 crosses into the second epoch
        assert windows_of_step(split(plan, micro_batch_size, world_size), step, world_size) == windows_of_step(
            plan, step
        )


def test_stream_sees_each_window_once_an_epoch(plan: RunPlan):
    seen = [window for step in range(N_TRAIN_WINDOWS) for window in windows_of_step(plan, step)]  # 12 epochs
    for epoch in range(12):
        epoch_windows = seen[epoch * N_TRAIN_WINDOWS : (epoch + 1) * N_TRAIN_WINDOWS]
        assert sorted(epoch_windows) == list(range(N_TRAIN_WINDOWS))


def test_stream_gives_targets_one_token_ahead(plan: RunPlan):
    inputs, targets = TrainStream(plan, world_of(), CPU).micro_batch(5, 1)
    assert inputs.shape == targets.shape == (2, T)
    assert inputs.dtype == torch.int64
    assert torch.equal(inputs + 1, targets)


def test_stream_reads_four_byte_tokens(plan: RunPlan):
    folder = Path(plan.data.dir)
    np.arange(70_000, 70_000 + 5 * T, dtype=np.uint32).tofile(folder / "train.bin")
    inputs, _ = TrainStream(replace(plan, data=replace(plan.data, dtype="uint32")), world_of(), CPU).micro_batch(0, 0)
    assert inputs.min() >= 70_000


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_eval_batches_deal_the_same_windows_out_to_the_ranks(plan: RunPlan, world_size: int):
    plan = replace(plan, trainer=replace(plan.trainer, n_eval_sequences=7))
    counted, n_batches = [], []
    for rank in range(world_size):
        batches = list(eval_batches(plan, world_of(rank, world_size), CPU))
        n_batches.append(len(batches))
        for inputs, targets, n in batches:
            assert inputs.shape == (2, T)
            assert n == 0 or (targets[n:] == IGNORED).all()
            assert (targets != IGNORED).any()  # a mean over nothing is nan
            counted += (inputs[:n, 0] // T).tolist()
    assert len(set(n_batches)) == 1  # ranks that share weights meet in each
    assert sorted(counted) == [0, 1, 3, 4, 6, 7, 9]  # i x 11 // 7


def test_eval_batches_may_be_of_another_size_than_the_training_ones(plan: RunPlan):
    batches = list(eval_batches(replace(plan, trainer=replace(plan.trainer, eval_micro_batch_size=5)), world_of(), CPU))
    assert [(len(inputs), n) for inputs, _, n in batches] == [(5, 5), (5, 5), (5, 1)]  # 11 windows


def test_stream_does_not_keep_pages_of_the_file_resident(plan: RunPlan):
    """Every window of a 32 MiB file is read; what stays is a batch."""
    n_positions = 8192
    large = replace(
        plan,
        trainer=replace(
            plan.trainer, sequence_length=n_positions, tokens_per_step=16 * n_positions, micro_batch_size=16
        ),
    )
    path = Path(plan.data.dir) / "train.bin"
    path.write_bytes(bytes(32 * 2**20 + 2))
    stream = TrainStream(large, world_of(), CPU)
    stream.micro_batch(0, 0)
    before = resident_bytes()
    for step in range(1, stream.windows.n_windows // 16):
        stream.micro_batch(step, 0)
    assert resident_bytes() - before < 12 * 2**20


def test_eval_batches_stop_at_the_end_of_the_file(plan: RunPlan):
    batches = list(eval_batches(plan, world_of(), CPU))  # asks for 48 sequences, the file has 11
    assert sum(n for _, _, n in batches) == N_VAL_WINDOWS


def test_stream_names_the_cure_when_a_token_is_not_in_the_vocabulary(plan: RunPlan):
    small = replace(plan, model=replace(plan.model, vocab_size=5))
    largest = N_TRAIN_WINDOWS * T + 2
    with pytest.raises(ConfigError, match=rf"token ids go up to {largest}, (.|\n)*model.vocab_size={largest + 1}"):
        TrainStream(small, world_of(), CPU).micro_batch(0, 0)


def test_stream_reads_token_files_that_are_larger_than_memory(plan: RunPlan):
    """128 GiB that take no disk: windows from all over it, and pages that are not kept."""
    with (Path(plan.data.dir) / "train.bin").open("r+b") as file:
        file.truncate(2**37)
    stream = TrainStream(plan, world_of(), CPU)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for step in range(50):
        assert not stream.micro_batch(step, 1)[0].any()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB
