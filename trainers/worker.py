"""The process of one rank: signals first, then the frozen plan, then the training.

python -m trainers.worker RUN_DIR --started UNIX_SECONDS [--resume]      (started by trainers.backends)
"""

from __future__ import annotations

import sys
from typing import NoReturn

from trainers.signals import StopRequest, stop_with_parent  # the others are imported when the handlers stand


def main() -> NoReturn:
    """Ends with the exit code of this rank; torchrun makes 1 of it, the run folder keeps it."""
    stop = StopRequest()
    stop.install()
    stop_with_parent()
    import argparse
    import json
    import os
    from pathlib import Path

    from trainers.outcome import abandon, leave
    from trainers.rank import run_rank

    parser = argparse.ArgumentParser(prog="trainers.worker")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--started", type=float, required=True)
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    stop.watch(lambda who: abandon(arguments.run_dir, int(os.environ.get("RANK", 0)), who))
    document = json.loads((arguments.run_dir / "plan.json").read_text())
    outcome = run_rank(
        document, arguments.run_dir, stop, started_unix=arguments.started, resume=arguments.resume, progress=sys.stdout
    )
    leave(outcome.exit_code)


if __name__ == "__main__":
    main()
