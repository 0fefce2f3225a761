"""Which tensor ran out of memory, why, and what would have fitted? Reads a log or a message.

python scripts/explain_oom.py train.log --run runs/20261130T120000.000000-gpt2_124m
python scripts/explain_oom.py - model=gpt2_124m hw=t4 trainer.micro_batch_size=32 < train.log
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from conf.compose import compose
from launcher.decide import planned
from preflight import rundir
from preflight.errors import ConfigError, PreflightError, Problem
from preflight.machine.snapshot import probe
from preflight.oom import explain, explanation_text
from preflight.plan import RunPlan


def main(arguments: list[str] | None = None) -> int:
    """0, or 2 when there is no such message or no such run."""
    parser = argparse.ArgumentParser(
        prog="python scripts/explain_oom.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", nargs="?", default="-", help="a file, or - for standard input")
    parser.add_argument("overrides", nargs="*", help="what the run was started with, as for launch.py")
    parser.add_argument("--run", help="the run's folder, or latest, instead of overrides")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), help="where the latest run is looked for")
    options = parser.parse_args(arguments)
    try:
        explanation = explain(_text(options.log), _plan(options))
    except PreflightError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    if explanation is None:
        print("no out-of-memory message of PyTorch in it", file=sys.stderr)
        return 2
    print(explanation_text(explanation))
    return 0


def _text(name: str) -> str:
    if name == "-":
        if sys.stdin.isatty():
            print("reading from the keyboard: paste the message, then Ctrl-D; or give the log's file", file=sys.stderr)
        return sys.stdin.read()
    try:
        return Path(name).read_text(errors="replace")
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise ConfigError(
            [Problem(path="log", value=name, message=message, fix="a file, or - for standard input")]
        ) from error


def _plan(options: argparse.Namespace) -> RunPlan | None:
    overrides: list[str] = options.overrides
    if options.run is not None:
        is_latest = options.run == "latest" and not Path(options.run).exists()
        folder = rundir.find("latest", options.runs_dir.resolve()) if is_latest else Path(options.run)
        return rundir.replay(folder / rundir.PLAN)[0].plan
    if not overrides:
        return None
    config = compose(overrides).config
    if config is None:
        raise ConfigError([Problem(path="", value="", message="overrides, no flags", fix="model=gpt2_124m hw=t4")])
    return planned(config, probe(Path(config.runs_dir)), overrides)[0]


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
