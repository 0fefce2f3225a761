"""The bill before the run: compose -> resolve -> estimate -> judge -> lower -> show -> launch -> record.

    python launch.py                                            train the default model on this machine
    python launch.py model=gpt2_124m hw=4x4090 dry_run=true     the bill of a machine that is not here
    torchrun --nproc_per_node=4 launch.py model=gpt2_124m       when torchrun is already in charge

`python launch.py --help` lists the options. In a notebook: `from launch import bill; bill("model=tiny", "hw=4090")`.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn

EARLY_SIGNALS = {"SIGINT": 130, "SIGTERM": 143, "SIGUSR1": 143, "SIGHUP": 143}


def _end_early(number: int, frame: FrameType | None) -> NoReturn:
    """There is nothing to save: no training is in progress."""
    name = signal.Signals(number).name
    with suppress(OSError):  # nobody reads it
        os.write(2, f"{name}: ended while no training was in progress, nothing to save\n".encode())
    os._exit(EARLY_SIGNALS[name])


if __name__ == "__main__":  # before the imports that take time
    if os.environ.pop("PYTHONSAFEPATH", "") or sys.flags.safe_path:  # ours are found where this file is
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    for _name in EARLY_SIGNALS:
        if hasattr(signal, _name) and signal.getsignal(getattr(signal, _name)) is not signal.SIG_IGN:  # nohup's word
            signal.signal(getattr(signal, _name), _end_early)

import json
import time
from collections.abc import Sequence
from pathlib import Path

from conf.compose import compose
from launcher.answer import Answer
from launcher.decide import answer, planned
from launcher.output import complain, prepare_streams, say
from preflight.bill import Bill, make_bill
from preflight.errors import ConfigError, PreflightError, Problem
from preflight.machine.snapshot import probe
from preflight.report.text import bill_text


def bill(*overrides: str) -> Bill:
    """Overrides in, estimate and verdict out; writes nothing. ConfigError has every problem of the configuration."""
    request = compose(overrides)
    for note in request.notes:
        complain(note)
    config = request.config
    if config is None:
        fix = 'bill("model=gpt2_124m", "hw=4x4090")'
        raise ConfigError([Problem(path="", value="", message="a bill takes overrides, no flags", fix=fix)])
    return make_bill(*planned(config, probe(Path(config.runs_dir)), overrides))


def show(answer: Bill) -> None:
    """The same screen as on the command line."""
    say(bill_text(answer).removesuffix("\n"))


def main(argv: Sequence[str] | None = None) -> int:
    """The exit codes of preflight.errors.ExitCode."""
    started_unix = time.time()
    prepare_streams()
    argv = sys.argv[1:] if argv is None else list(argv)
    is_under_torchrun = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    if is_under_torchrun and os.environ["RANK"] != "0":
        return _follow(started_unix)
    the_answer = answer(argv)
    if is_under_torchrun:
        return _lead(the_answer, started_unix)
    decided, run_dir = the_answer.bill, the_answer.run_dir
    if decided is None or run_dir is None:
        return the_answer.exit_code
    from launcher import relaunch  # bills do not pay for it
    from launcher.finish import finish

    progress = sys.stderr if the_answer.as_json else sys.stdout
    decided, outcome = relaunch.run(
        decided, run_dir, started_unix=started_unix, resume=the_answer.resume, progress=progress
    )
    return finish(decided, run_dir, outcome, as_json=the_answer.as_json)


def _lead(the_answer: Answer, started_unix: float) -> int:
    """Rank 0 under torchrun decides alone, tells the other ranks, then trains as one of them."""
    from launcher.finish import finish
    from preflight import rundir
    from trainers.backends import torchrun

    decided, run_dir = the_answer.bill, the_answer.run_dir
    try:
        torchrun.require_torch()
    except PreflightError as error:
        complain(str(error))
        return error.exit_code
    if decided is None or run_dir is None:
        torchrun.publish({"exit_code": the_answer.exit_code, "document": None})
        return the_answer.exit_code
    word = {
        "exit_code": 0,
        "document": json.loads((run_dir / rundir.PLAN).read_text()),
        "run_dir": str(run_dir),
        "resume": the_answer.resume,
    }
    torchrun.publish(word)
    outcome = torchrun.train(word, started_unix=started_unix, progress=sys.stderr if the_answer.as_json else sys.stdout)
    return finish(decided, run_dir, outcome, as_json=the_answer.as_json)


def _follow(started_unix: float) -> int:
    """Any other rank under torchrun: never compose, take the plan from rank 0."""
    from trainers.backends import torchrun

    try:
        word = torchrun.receive()
    except PreflightError as error:
        complain(str(error))
        return error.exit_code
    if word["document"] is None:
        return int(word["exit_code"])
    return torchrun.train(word, started_unix=started_unix, progress=sys.stdout).exit_code


if __name__ == "__main__":
    code = main()
    if "RANK" in os.environ:
        from trainers.outcome import leave

        leave(code)
    sys.exit(code)
