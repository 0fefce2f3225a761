"""A plan reaches the processors of this machine: one rank is one process, several are torchrun's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

from preflight import presence
from preflight.errors import ExitCode
from preflight.hw_plan import CardKind
from preflight.machine.surroundings import address_space_bytes
from preflight.plan import RunPlan
from preflight.units import format_bytes
from trainers.oom_kill import was_killed_for_memory
from trainers.outcome import Outcome, as_outcome, clear_failures, first_failure, killed, stop_code
from trainers.signals import (
    AGENT_KILLED,
    HANDLED,
    LAUNCHER_VARIABLE,
    PARENT_VARIABLE,
    handled,
    held_back,
    stop_with_parent,
)

HEAP_VARIABLE = "GLIBC_TUNABLES"
HEAP = {"hugetlb": 1, "mmap_threshold": 2**30, "trim_threshold": 2**32}  # bytes; hugetlb=1: madvise
STOPPED_BY: dict[int, str] = {ExitCode.INTERRUPTED: "SIGINT", ExitCode.TERMINATED: "SIGTERM, SIGUSR1 or SIGHUP"}
RANK_SECONDS = 4.5  # for ranks that lost their parent: their own term, and a little


def run(plan: RunPlan, run_dir: Path, *, started_unix: float, resume: bool, progress: TextIO | None) -> Outcome:
    """Train and wait. Signals to this process reach the ranks, which finish their step and save."""
    clear_failures(run_dir)
    was_killed_for_memory()  # it counts from now on
    me = str(os.getpid())
    own = {PARENT_VARIABLE: me, LAUNCHER_VARIABLE: me} | _allocator() | _heap(plan.hw.card.kind)
    environment = os.environ | own | _threads(plan.hw.world_size)
    with ExitStack() as stack:
        with held_back():  # no signal falls between the start and the handlers, here or in the child
            process = subprocess.Popen(
                command(plan, run_dir, started_unix=started_unix, resume=resume),
                stdout=_descriptor(progress, 1),
                stderr=_descriptor(sys.stderr, 2),
                env=environment,
                cwd=Path(__file__).resolve().parents[2],  # where the packages are
                start_new_session=True,  # a terminal's Ctrl-C reaches launch.py alone, which passes it on once
            )
            received = stack.enter_context(_forwarding(process))
        code = _wait(process, received, plan.launcher.grace_seconds)
        is_agent_killed = code < 0 and not received  # else their time is up, or the user means now
        if presence.wait_until_all_are_gone(run_dir, RANK_SECONDS if is_agent_killed else 0.0):
            presence.kill_all(run_dir)
    return _outcome(run_dir, code, received, has_agent=plan.hw.world_size > 1)


def command(plan: RunPlan, run_dir: Path, *, started_unix: float, resume: bool) -> list[str]:
    """What is started; no port is fixed: torchrun's standalone rendezvous picks a free one."""
    worker = ["trainers.worker", str(run_dir), "--started", repr(started_unix), *(["--resume"] if resume else [])]
    if plan.hw.world_size == 1:
        return [sys.executable, "-m", *worker]
    torchrun = [
        "--standalone",
        f"--nproc-per-node={plan.hw.n_gpus_per_node}",
        f"--signals-to-handle={','.join(HANDLED)}",
        f"--shutdown-timeout={int(plan.launcher.grace_seconds)}",
    ]
    return [sys.executable, "-m", "trainers.backends.agent", str(run_dir), *torchrun, "-m", *worker]


def _descriptor(stream: TextIO | None, usual: int) -> int:
    """Where the child writes: one without a descriptor (a notebook's) means the usual one, a closed one nowhere."""
    if stream is None:  # closed before Python started; the number may be another file's by now
        return subprocess.DEVNULL
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        number = usual
    try:
        os.fstat(number)
    except OSError:
        return subprocess.DEVNULL
    return number


def _allocator() -> dict[str, str]:
    """Growing segments keep fragmentation out of the reserved memory; the user's own setting wins."""
    name = "PYTORCH_CUDA_ALLOC_CONF"
    return {} if name in os.environ or "PYTORCH_ALLOC_CONF" in os.environ else {name: "expandable_segments:True"}


def _heap(kind: CardKind) -> dict[str, str]:
    """A processor's tensors on huge pages, freed ones kept for the next step: fewer page faults (docs/speed.md).

    Read by glibc 2.35 and newer as the process starts; others ignore it. The user's own setting wins.
    """
    is_ours = kind is CardKind.cpu and HEAP_VARIABLE not in os.environ
    return {HEAP_VARIABLE: ":".join(f"glibc.malloc.{name}={value}" for name, value in HEAP.items())} if is_ours else {}


def _threads(world_size: int) -> dict[str, str]:
    """What torchrun sets for several ranks, with a warning, where nobody did; ranks then share the cores
    (`trainers.distributed.share_cpu_threads`). The user's own setting wins.
    """
    name = "OMP_NUM_THREADS"
    return {} if world_size == 1 or name in os.environ else {name: "1"}


def follow_parent() -> None:
    """A row of a grid ends with its grid."""
    if PARENT_VARIABLE in os.environ:
        stop_with_parent()


def attend(process: subprocess.Popen[bytes], grace_seconds: float) -> int:
    """Wait for a child in a session of its own, passing signals on to it; its exit code, 128 + n for signal n."""
    with _forwarding(process) as received:
        code = _wait(process, received, grace_seconds)
    return code if code >= 0 else 128 - code


@contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[list[str]]:
    """Pass signals on to the child; yields the names received so far."""
    received: list[str] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number).name)
        if received.count("SIGINT") > 1:
            os.killpg(process.pid, signal.SIGKILL)  # a second Ctrl-C means now
        elif process.poll() is None:
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in handled()}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(process: subprocess.Popen[bytes], received: list[str], grace_seconds: float) -> int:
    """The child's exit code; after a signal it has `grace_seconds` to finish its step and save."""
    deadline: float | None = None
    while True:
        try:
            return process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            if received and deadline is None:
                deadline = time.monotonic() + grace_seconds + 5
            if deadline is not None and time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)


def _outcome(run_dir: Path, code: int, received: list[str], *, has_agent: bool) -> Outcome:
    """The first failure is the cause; else the signal; a child that was killed leaves only its exit code."""
    if code == 0:
        return Outcome(exit_code=ExitCode.OK, reason="done")
    failure = first_failure(run_dir)
    if failure is None and received:
        return Outcome(exit_code=stop_code(received[0]), reason=received[0])
    if failure is None and code < 0 and not has_agent:
        failure = killed(0, -code, is_out_of_memory=was_killed_for_memory())
    if failure is not None:
        return as_outcome(failure)
    if code < 0:  # its ranks have heard of it from the kernel, and saved
        reason = f"{AGENT_KILLED}: the agent, parent of the ranks, by {signal.Signals(-code).name}"
        return Outcome(exit_code=ExitCode.TRAINING_FAILED, reason=reason)
    if code in STOPPED_BY:
        return Outcome(exit_code=code, reason=f"{STOPPED_BY[code]} to the training processes, not to launch.py")
    known = code in set(ExitCode)
    limit = address_space_bytes()
    room = "" if limit is None else f"; it may map no more than {format_bytes(limit)} (ulimit -v)"
    reason = f"the training process ended with exit code {code}{room}"
    return Outcome(exit_code=code if known else ExitCode.TRAINING_FAILED, reason=reason)
