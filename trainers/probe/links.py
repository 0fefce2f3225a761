"""How fast do the ranks of a node exchange gradients? All-reduce of one DDP bucket, and of next to nothing.

Bus bandwidth by NCCL's definition: 2 (n - 1) / n x bytes / seconds, the latency taken off. Ranks meet through a file,
so that no port is needed.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

BUCKET_BYTES = 25 * 2**20  # DistributedDataParallel's
TINY_BYTES = 4096
N_TINY = 50
MIN_ROUNDS, MAX_ROUNDS = 3, 100
MEETING_SECONDS = 20.0


def all_reduce(device_type: str, n_ranks: int, n_threads: int, budget_seconds: float) -> tuple[float, float]:
    """Bus bytes per second and latency in seconds. RuntimeError: the ranks did not come to an end."""
    is_linux = sys.platform.startswith("linux")
    context = multiprocessing.get_context("fork") if is_linux else multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (str(Path(folder) / "meeting"), device_type, n_ranks, n_threads, budget_seconds)
        ranks = [
            context.Process(target=_run_rank, args=(rank, *arguments, sender), daemon=True) for rank in range(n_ranks)
        ]
        for process in ranks:
            process.start()
        sender.close()
        try:
            if not receiver.poll(budget_seconds + MEETING_SECONDS):
                raise RuntimeError("the ranks did not meet")
            answer: tuple[float, float] = receiver.recv()
        except EOFError as error:
            raise RuntimeError("a rank of the all-reduce failed") from error
        finally:
            for process in ranks:
                process.join(timeout=2.0)
                if process.is_alive():
                    process.kill()
    return answer


def _run_rank(
    rank: int,
    meeting: str,
    device_type: str,
    n_ranks: int,
    n_threads: int,
    budget_seconds: float,
    sender: Connection,
) -> None:
    device = torch.device("cuda", rank) if device_type == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, n_threads // n_ranks))
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=n_ranks,
        timeout=timedelta(seconds=MEETING_SECONDS),
    )
    answer = bus(device, n_ranks, budget_seconds)
    if rank == 0:
        sender.send(answer)
    dist.destroy_process_group()


def bus(device: torch.device, n_ranks: int, budget_seconds: float) -> tuple[float, float]:
    """Every rank calls it: the same number of rounds on each, agreed from rank 0's first one."""
    latency_seconds = _seconds(device, TINY_BYTES, N_TINY)
    one = _seconds(device, BUCKET_BYTES, 1)
    agreed = torch.tensor([max(MIN_ROUNDS, min(MAX_ROUNDS, int(budget_seconds / max(one, 1e-6))))], device=device)
    dist.broadcast(agreed, 0)
    seconds = _seconds(device, BUCKET_BYTES, int(agreed.item()))
    return 2 * (n_ranks - 1) / n_ranks * BUCKET_BYTES / max(seconds - latency_seconds, 1e-9), latency_seconds


def _seconds(device: torch.device, n_bytes: int, n_rounds: int) -> float:
    """Mean of a round, after one that sets up the connections."""
    bucket = torch.zeros(n_bytes // 4, device=device)
    dist.all_reduce(bucket)
    _wait(device)
    begin = time.perf_counter()
    for _ in range(n_rounds):
        dist.all_reduce(bucket)
    _wait(device)
    return (time.perf_counter() - begin) / n_rounds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
