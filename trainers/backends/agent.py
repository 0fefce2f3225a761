"""torchrun with two changes: signals reach every rank, and the first failure is left in the run folder, not printed.

python -m trainers.backends.agent RUN_DIR TORCHRUN_ARGUMENTS...
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from trainers.outcome import Failure, killed, write_failure
from trainers.signals import PARENT_VARIABLE, stop_with_parent


def main() -> int:
    """Run torchrun in this process; 1 when a rank failed, 128 + n when signal n stopped it."""
    stop_with_parent()
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import get_args_parser, run

    run_dir, arguments = Path(sys.argv[1]), sys.argv[2:]
    try:
        run(get_args_parser().parse_args(arguments))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        signalled = [r for r, f in error.failures.items() if f.exitcode < 0]
        if signalled:
            rank = signalled[0]
            write_failure(run_dir, killed(rank, -error.failures[rank].exitcode), author="agent")
        else:
            reason = f"rank {rank} ended with exit code {failure.exitcode}"
            word = Failure(rank=rank, exit_code=5, reason=reason, unix_seconds=time.time())
            write_failure(run_dir, word, author="agent")
        return 1
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main())
