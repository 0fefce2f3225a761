"""Does a run survive whatever kills it? Random kills, resumed after each, against the same run undisturbed.

    python scripts/soak.py                          50 kills of a run on two ranks (some minutes)
    python scripts/soak.py --kills 4 --steps 120    the short one

Each time a rank, torchrun's agent or launch.py gets SIGKILL, SIGTERM or SIGINT: at a random step, while a checkpoint
is written, when an evaluation begins, or while the processes start. Then everything must end, and `resume=` goes on.
At the end every step's loss, every evaluation and all weights must equal the undisturbed run's to the bit, each step
must stand in metrics.jsonl once, and the ledger must hold a line for every launch that began.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from scripts.soak_compare import EVAL_INTERVAL, differences, last_step, ledger_faults

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
MOMENTS = ("step", "save", "evaluation", "start")
CHECKPOINT_INTERVAL = 5
OVERRIDES = (
    "model.n_layer=2", "model.n_embd=32", "model.n_head=2", "model.dropout=0.1", "trainer.sequence_length=32",
    "trainer.micro_batch_size=4", "trainer.tokens_per_step=256", "trainer.eval_tokens=512", "trainer.precision=fp32",
    "trainer.log_interval=1", f"trainer.eval_interval={EVAL_INTERVAL}", "data=text", "tracking=none",
    f"trainer.checkpoint_interval={CHECKPOINT_INTERVAL}", "calibration=off",
)  # fmt: skip
END_SECONDS = 60.0  # for everything to be gone; overloaded machines are slow


class Kill(NamedTuple):
    """What was done, and how long everything took to end."""

    moment: str
    victim: str
    signal: str
    step: int
    seconds: float


def main(arguments: list[str] | None = None) -> int:
    """0: nothing was lost."""
    parser = argparse.ArgumentParser(
        prog="python scripts/soak.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, help="where the runs are kept (default: a temporary folder)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it, and so would ours
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.dir or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        soak = Soak(folder, options.steps, options.ranks, random.Random(options.seed))
        undisturbed = soak.undisturbed()
        print(f"undisturbed: {options.steps} steps on {options.ranks} ranks", flush=True)
        disturbed, kills = soak.disturbed(options.kills)
        faults = differences(undisturbed, disturbed, options.steps)
        faults += ledger_faults(folder / "disturbed", soak.n_begun, soak.n_launches)
    print(summary(kills, soak.n_launches))
    for fault in faults:
        print(f"FAULT: {fault}")
    print("identical: every loss, every evaluation, all weights" if not faults else f"{len(faults)} faults")
    return 1 if faults else 0


class Soak:
    """The two runs, their folders side by side."""

    def __init__(self, folder: Path, n_steps: int, n_ranks: int, chance: random.Random) -> None:
        self.folder, self.n_steps, self.n_ranks, self.chance = folder, n_steps, n_ranks, chance
        self.n_launches = self.n_begun = 0  # begun: had the folder before they were killed
        text = folder / "text.txt"
        text.write_text("\n".join(path.read_text() for path in sorted((ROOT / "preflight").glob("*.py"))))

    def undisturbed(self) -> Path:
        """Its run folder."""
        self._start("undisturbed").wait()
        return next((self.folder / "undisturbed").glob("*/plan.json")).parent

    def disturbed(self, n_kills: int) -> tuple[Path, list[Kill]]:
        """Its run folder, and what happened to it."""
        kills: list[Kill] = []
        runs_dir = self.folder / "disturbed"
        process = self._start("disturbed")
        wait_until(lambda: any(runs_dir.glob("*/plan.json")), process)
        run_dir = next(runs_dir.glob("*/plan.json")).parent
        while len(kills) < n_kills and not is_done(run_dir, self.n_steps):
            kill = self._kill(process, run_dir, n_kills - len(kills))
            if kill is not None:
                kills.append(kill)
                print(f"{len(kills):3} {kill.moment:10} {kill.victim:8} {kill.signal:7} step {kill.step}", flush=True)
            process = self._start("disturbed", run_dir)
        process.wait()
        self.n_begun += 1
        return run_dir, kills

    def _start(self, name: str, run_dir: Path | None = None) -> subprocess.Popen[bytes]:
        if name == "disturbed":
            self.n_launches += 1
        data = f"data.dir={self.folder / 'data'}"
        fresh = [*OVERRIDES, f"hw={self.n_ranks}xcpu", f"trainer.n_steps={self.n_steps}", data]
        fresh += [f"data.path={self.folder / 'text.txt'}"]
        overrides = fresh if run_dir is None else [f"resume={run_dir}"]
        words = [sys.executable, str(ROOT / "launch.py"), f"runs_dir={self.folder / name}", *overrides]
        with (self.folder / "stderr.txt").open("ab") as errors:
            return subprocess.Popen(
                words, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=errors
            )

    def _kill(self, process: subprocess.Popen[bytes], run_dir: Path, n_left: int) -> Kill | None:
        """Wait for a moment, then kill somebody; None: the run was over before."""
        moment = self.chance.choice(MOMENTS)
        began = last_step(run_dir)
        stride = max(1, 2 * (self.n_steps - began) // (n_left + 1))
        if not self._wait_for(moment, began + self.chance.randint(1, stride), process, run_dir):
            process.wait()
            return None
        family = [psutil.Process(process.pid), *children_of(process.pid)]
        victim, target = self._victim(family)
        number = self.chance.choice(SIGNALS)
        step, then = last_step(run_dir), time.monotonic()
        self.n_begun += has_the_folder(process, run_dir)
        with suppress(psutil.NoSuchProcess):  # it was leaving
            target.send_signal(number)
        process.wait(END_SECONDS)
        while any(is_alive(member) for member in family):
            if time.monotonic() - then > END_SECONDS:
                raise SystemExit(f"still there after {END_SECONDS:g} s: {[m for m in family if is_alive(m)]}")
            time.sleep(0.02)
        return Kill(moment, victim, signal.Signals(number).name, step, time.monotonic() - then)

    def _wait_for(self, moment: str, step: int, process: subprocess.Popen[bytes], run_dir: Path) -> bool:
        """Whether the run was still there when the moment came."""
        if moment == "start":
            time.sleep(self.chance.uniform(0.3, 4.0))
            return process.poll() is None
        if moment == "save":
            step = -(-step // CHECKPOINT_INTERVAL) * CHECKPOINT_INTERVAL - 1
        if moment == "evaluation":
            step = -(-step // EVAL_INTERVAL) * EVAL_INTERVAL
        if not wait_until(lambda: last_step(run_dir) >= step, process):
            return False
        if moment == "save":
            deadline = time.monotonic() + 2.0
            while not any(run_dir.glob("checkpoints/*.tmp")) and time.monotonic() < deadline:
                pass  # it is there for some milliseconds
        return process.poll() is None

    def _victim(self, family: list[psutil.Process]) -> tuple[str, psutil.Process]:
        """launch.py, the agent, or a rank."""
        named: dict[str, psutil.Process] = {"launcher": family[0]}
        for member in family[1:]:
            try:
                words, environment = member.cmdline(), member.environ()
            except psutil.Error:
                continue
            if "trainers.backends.agent" in words:
                named["agent"] = member
            elif "trainers.worker" in words:
                named[f"rank {environment.get('RANK', 0)}"] = member
        name = self.chance.choice(sorted(named))
        return name, named[name]


def has_the_folder(process: subprocess.Popen[bytes], run_dir: Path) -> bool:
    """Its number is in the lock."""
    try:
        return (run_dir / "lock").read_text() == str(process.pid)
    except OSError:
        return False


def is_done(run_dir: Path, n_steps: int) -> bool:
    """It came to its last step and said so."""
    path = run_dir / "actual.json"
    try:
        return bool(json.loads(path.read_text())["actual"]["exit_code"] == 0) and last_step(run_dir) == n_steps
    except (OSError, ValueError, KeyError):
        return False


def wait_until(condition: Any, process: subprocess.Popen[bytes]) -> bool:
    """False: the process ended first."""
    while not condition():
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    return True


def children_of(pid: int) -> list[psutil.Process]:
    """All below; none when it has just ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def is_alive(process: psutil.Process) -> bool:
    """The dead whom nobody waits for are dead."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def summary(kills: list[Kill], n_launches: int) -> str:
    """One line each for what was killed, how and when."""
    longest = max((kill.seconds for kill in kills), default=0.0)
    lines = [f"{len(kills)} kills, {n_launches} launches; all gone after {longest:.1f} s at most"]
    for field in ("victim", "signal", "moment"):
        counts = Counter(getattr(kill, field) for kill in kills)
        lines.append(f"{field}: " + ", ".join(f"{name} {n}" for name, n in sorted(counts.items())))
    return "\n".join(lines)


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
