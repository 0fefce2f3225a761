"""torchrun with two changes: signals reach every rank, and the first failure is left in the run folder, not printed.

python -m trainers.backends.agent RUN_DIR TORCHRUN_ARGUMENTS...
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from trainers.signals import PARENT_VARIABLE, handled, let_through, stop_with_parent

FAILURE_SECONDS = 2  # for the other ranks to end, once one has failed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main() -> int:
    """Run torchrun in this process; the exit code of its ranks, or of the signal that stopped it."""
    for number in handled():
        signal.signal(number, _end_early)
    let_through()
    stop_with_parent()
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    from pathlib import Path

    from trainers.importing import few_collections
    from trainers.oom_kill import was_killed_for_memory
    from trainers.outcome import not_loaded, stop_code, write_failure

    run_dir, arguments = Path(sys.argv[1]), sys.argv[2:]
    try:
        with few_collections():
            from torch.distributed.elastic.multiprocessing.api import SignalException
            from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
            from torch.distributed.run import get_args_parser, run
    except Exception as error:  # noqa: BLE001 - libraries that are half there fail in any way
        failure = not_loaded(0, error)
        write_failure(run_dir, failure, author="agent")
        return failure.exit_code
    was_killed_for_memory()  # it counts from now on
    ended = hurry_after_a_failure()
    try:
        run(get_args_parser().parse_args(arguments))
    except ChildFailedError as error:
        return leave_word(run_dir, error, ended)
    except SignalException as error:
        return stop_code(signal.Signals(error.sigval).name)
    return 0


def hurry_after_a_failure() -> dict[int, int]:
    """torchrun gives the other ranks 30 s once one has failed; they wait in a collective and have nothing to save.

    Comes back empty and holds, by the time that torchrun ends the others, the exit codes of those that ended before.
    """
    from torch.distributed.elastic.multiprocessing.api import SubprocessContext

    from trainers.outcome import IN_ORDER

    close, ended = SubprocessContext._close, dict[int, int]()

    def close_soon(self: SubprocessContext, death_sig: signal.Signals, timeout: int = 30) -> None:
        codes = {rank: handler.proc.poll() for rank, handler in self.subprocess_handlers.items()}
        if not ended:
            ended.update({rank: code for rank, code in codes.items() if code})
        close(self, death_sig, timeout if set(ended.values()) <= IN_ORDER else min(timeout, FAILURE_SECONDS))

    SubprocessContext._close = close_soon  # type: ignore[method-assign]
    return ended


def leave_word(run_dir: Path, error: ChildFailedError, ended: Mapping[int, int] | None = None) -> int:
    """Write down which rank failed. Ranks that stopped in order left a checkpoint and actual.json: no failure."""
    import time

    from preflight.errors import ExitCode
    from trainers.oom_kill import was_killed_for_memory
    from trainers.outcome import IN_ORDER, Failure, killed, write_failure

    codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
    if set(codes.values()) <= IN_ORDER and (run_dir / "actual.json").is_file():
        return next(iter(codes.values()))
    codes = dict(ended) if ended and not set(ended.values()) <= IN_ORDER else codes  # torchrun itself ended the others
    signalled = [rank for rank, code in codes.items() if code < 0]
    if signalled:
        failure = killed(signalled[0], -codes[signalled[0]], is_out_of_memory=was_killed_for_memory())
    else:
        earliest = error.get_first_failure()[0]
        first = earliest if earliest in codes else next(iter(codes))
        if codes[first] in IN_ORDER:
            first = next((rank for rank, code in codes.items() if code not in IN_ORDER), first)
        ours = codes[first] in set(ExitCode)
        failure = Failure(
            rank=first,
            exit_code=codes[first] if ours else ExitCode.TRAINING_FAILED,
            reason=f"rank {first} ended with exit code {codes[first]}",
            unix_seconds=time.time(),
        )
    write_failure(run_dir, failure, author="agent")
    return failure.exit_code


def _end_early(number: int, frame: FrameType | None) -> NoReturn:
    """Until torchrun starts the ranks, and takes the signals over, there is nothing to save."""
    os._exit(130 if number == signal.SIGINT else 143)


if __name__ == "__main__":
    sys.exit(main())
