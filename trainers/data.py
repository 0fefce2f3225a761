"""Which tokens does step k see? A pure function of seed and k: any number of ranks, micro-batch and restart agree.

A token file is cut into windows of one sequence. Global sample g is window `permutation(epoch)[g mod n_windows]`, and
each epoch has its own permutation: every window is seen once an epoch, in an order that needs no memory (a Feistel
network on the index, walked until it falls inside; Black & Rogaway 2002) and can be entered at any step.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from preflight.dataset import TRAIN_NAME, VAL_NAME
from preflight.errors import ConfigError, Problem
from preflight.machine.snapshot import World
from preflight.plan import RunPlan
from trainers.gpt import IGNORED

N_FEISTEL_ROUNDS = 4  # enough for a permutation that no test of ours tells from a random one (Luby & Rackoff 1988)
U64 = np.uint64


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele et al. 2014): every input bit reaches every output bit."""
    x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    return x ^ (x >> U64(31))


def permute(index: NDArray[np.int64], n: int, seed: int, epoch: NDArray[np.int64]) -> NDArray[np.int64]:
    """Element-wise: where `index` of 0..n-1 goes in the permutation of that epoch."""
    half_bits = U64(max(1, ((n - 1).bit_length() + 1) // 2))  # the network permutes 0 .. 4^half_bits - 1 >= n - 1
    mask = (U64(1) << half_bits) - U64(1)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        key = _mix(_mix(np.full(1, seed, U64)) + epoch.astype(U64))
        value, outside = index.astype(U64), np.ones(index.shape, bool)
        while outside.any():
            left, right = value[outside] >> half_bits, value[outside] & mask
            for i in range(N_FEISTEL_ROUNDS):
                left, right = right, left ^ (_mix(right + key[outside] * U64(2 * i + 1)) & mask)
            value[outside] = (left << half_bits) | right
            outside = value >= U64(n)  # fewer than 3/4 land outside: walk on from there
    return value.astype(np.int64)


class TokenWindows:
    """One token file as windows of `sequence_length` inputs and their targets, read through a memory map."""

    def __init__(self, path: Path, dtype: str, sequence_length: int, vocab_size: int) -> None:
        self.path, self.dtype, self.sequence_length = path, np.dtype(dtype), sequence_length
        self.vocab_size = vocab_size
        self.n_windows = (path.stat().st_size // self.dtype.itemsize - 1) // sequence_length

    def read(self, windows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """(B,) window numbers -> inputs and targets, (B, T) int64. Mapped anew each time: pages do not pile up."""
        tokens = np.memmap(self.path, dtype=self.dtype, mode="r")
        T = self.sequence_length
        batch = np.stack([tokens[i * T : i * T + T + 1] for i in windows])
        if batch.max() >= self.vocab_size:
            raise self._no_such_token(int(tokens.max()))
        rows = torch.from_numpy(batch.astype(np.int64))
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def _no_such_token(self, largest: int) -> ConfigError:
        """On a card it would be an assertion of the device, which no process survives or understands."""
        message = f"token ids go up to {largest:,}, the model's vocabulary has {self.vocab_size:,}"
        fix = f"model.vocab_size={largest + 1}, or data made for the model's tokenizer"
        return ConfigError([Problem(path="data", value=str(self.path), message=message, fix=fix)])


def _to_device(batch: tuple[Tensor, Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    """To the device; from pinned memory on cuda, so that the copy runs beside the computing."""
    if device.type == "cuda":
        return tuple(part.pin_memory().to(device, non_blocking=True) for part in batch)  # type: ignore[return-value]
    return batch[0].to(device), batch[1].to(device)


class TrainStream:
    """The training batches of one rank."""

    def __init__(self, plan: RunPlan, world: World, device: torch.device) -> None:
        self.trainer, self.seed, self.world, self.device = plan.trainer, plan.seed, world, device
        self.windows = _windows(plan, TRAIN_NAME)

    def micro_batch(self, step: int, micro_step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (B, T). The ranks' micro-batches lie side by side in the global batch."""
        B, n = self.trainer.micro_batch_size, self.windows.n_windows
        first = step * (self.trainer.tokens_per_step // self.trainer.sequence_length)
        samples = first + (micro_step * self.world.world_size + self.world.rank) * B + np.arange(B)
        return _to_device(self.windows.read(permute(samples % n, n, self.seed, samples // n)), self.device)


def eval_batches(plan: RunPlan, world: World, device: torch.device) -> Iterator[tuple[Tensor, Tensor, int]]:
    """The same held-out windows every time, spread evenly over the file and dealt out to the ranks.

    Yields inputs, targets, number of sequences that count: the last batch is filled up with sequences that do not,
    so that the shape never changes (a compiled model would compile again). Every rank has as many batches as the
    others, since ranks that share weights meet in each of them: the last may count for nothing.
    """
    B = plan.trainer.eval_micro_batch_size or plan.trainer.micro_batch_size
    held_out = _windows(plan, VAL_NAME)
    n = min(plan.trainer.n_eval_sequences, held_out.n_windows)
    spread = np.arange(n) * held_out.n_windows // n
    mine = spread[world.rank :: world.world_size]
    for start in range(0, -(-n // world.world_size), B):
        windows = mine[start : start + B]
        inputs, targets = held_out.read(np.resize(windows if len(windows) else spread, B))
        if len(windows):  # a mean over nothing would be nan
            targets[len(windows) :] = IGNORED
        yield *_to_device((inputs, targets), device), len(windows)


def _windows(plan: RunPlan, name: str) -> TokenWindows:
    """A plan that was resolved before its data was prepared has no dtype: bytes then, which fit uint16."""
    path, dtype = Path(plan.data.dir) / name, plan.data.dtype or "uint16"
    return TokenWindows(path, dtype, plan.trainer.sequence_length, plan.model.vocab_size)
