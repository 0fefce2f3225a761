"""When torchrun is already in charge: global rank 0 decides, the others take the plan through torchrun's own store.

No shared disk is needed, and a rank that hears nothing says so after a bounded wait instead of hanging.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from preflight.errors import PreflightError, WrongMachine
from trainers.agreement import differences
from trainers.importing import few_collections
from trainers.outcome import Outcome, abandon, clear_failures, not_loaded
from trainers.signals import StopRequest, stop_with_parent
from trainers.warn import warn

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

WAIT_SECONDS = 60.0  # for rank 0 to compose, estimate, judge and lower, which takes less than a second


def publish(message: dict[str, Any]) -> None:
    """Rank 0's word to all: exit code, run folder, and the plan document when it is a go."""
    if message["document"] is not None:  # before the others have heard of the folder
        clear_failures(Path(message["run_dir"]))
    _store().set(_key(), json.dumps({**message, "sent_unix": time.time()}))


def receive() -> dict[str, Any]:
    """Rank 0's word; PreflightError when none comes."""
    require_torch()
    with few_collections():
        from torch.distributed import DistStoreError

    try:
        word = dict(json.loads(_store().get(_key())))
        _tell_differences(word)
        return word
    except DistStoreError as error:
        rank = os.environ["RANK"]
        raise PreflightError(
            f"rank {rank} heard nothing from rank 0 at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} "
            f"within {WAIT_SECONDS:.0f} s; rank 0's own output says why ({type(error).__name__})"
        ) from error


def require_torch() -> None:
    """The ranks meet in a store of PyTorch's."""
    try:
        with few_collections():
            import torch  # noqa: F401
    except Exception as error:
        raise WrongMachine(not_loaded(int(os.environ["RANK"]), error).reason) from error


def _tell_differences(word: Mapping[str, Any]) -> None:
    import torch

    if word["document"] is None or os.environ.get("LOCAL_RANK") != "0":  # once a machine
        return
    told = differences(
        word["document"]["plan"]["software"],
        python=platform.python_version(),
        torch=str(torch.__version__),
        rank=int(os.environ["RANK"]),
        sent_unix=word.get("sent_unix"),
        received_unix=time.time(),
    )
    for line in told:
        warn(line)


def train(word: Mapping[str, Any], *, started_unix: float, progress: TextIO) -> Outcome:
    """Be one of the ranks, in this process, which torchrun has started and watches."""
    from trainers.rank import run_rank

    stop = StopRequest()
    stop.install()
    stop_with_parent()
    run_dir, resume = Path(word["run_dir"]), bool(word["resume"])
    stop.watch(lambda who: abandon(run_dir, int(os.environ["RANK"]), who))
    if os.environ["RANK"] == "0" and word["document"]["plan"]["lowering"].get("on_oom") == "relaunch":
        warn("lowering.on_oom=relaunch needs launch.py in charge; under torchrun, running out of memory ends the run")
    return run_rank(word["document"], run_dir, stop, started_unix=started_unix, resume=resume, progress=progress)


def _store() -> TCPStore:
    with few_collections():
        from torch._C._distributed_c10d import TCPStore

    agent_has_it = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        int(os.environ["WORLD_SIZE"]),
        is_master=os.environ["RANK"] == "0" and not agent_has_it,
        timeout=timedelta(seconds=WAIT_SECONDS),
        wait_for_workers=False,
        multi_tenant=True,  # the process group of this process uses the same address
    )


def _key() -> str:
    """A restarted job must not read the word of the one before."""
    return f"preflight/{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
