"""Before the first real run with these versions: does torch.compile work here, and do copies between cards arrive?

The answer is kept in runs_dir, by versions, so that the next run with them does not ask again. What does not work is
done without, and said: no compiler means a slower step, which the bill then counts; no copies means NCCL goes through
the host's memory. Dry runs never ask.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from preflight.hw_plan import CardKind
from preflight.machine.snapshot import Machine
from preflight.plan import RunPlan
from preflight.verdict.judge import Finding, Severity

FILE = "trials.json"
SECONDS = 50.0  # the other ranks of a torchrun wait for a minute
P2P_OFF = "NCCL_P2P_DISABLE"
ROOT = Path(__file__).resolve().parents[1]


def tried(plan: RunPlan, findings: tuple[Finding, ...], machine: Machine) -> tuple[RunPlan, tuple[Finding, ...]]:
    """The plan that works here, and what had to be left out; unchanged where nothing is in doubt or nothing starts."""
    names = _doubtful(plan)
    if not names or any(finding.severity is Severity.error for finding in findings):
        return plan, findings
    answers = _answers(plan, names, versions(plan, machine), Path(plan.runs_dir))
    if answers.get("compile"):
        plan = replace(plan, trainer=replace(plan.trainer, compile=False))
        findings = (*findings, _without("compile", f"torch.compile does not work here: {answers['compile']}"))
    if answers.get("copies"):
        os.environ[P2P_OFF] = "1"  # ranks inherit it
        findings = (*findings, _without("copies", f"cards cannot copy to each other: {answers['copies']}"))
    return plan, findings


def versions(plan: RunPlan, machine: Machine) -> str:
    """What the answer depends on."""
    cards = [f"{gpu.name} {gpu.driver}" for gpu in machine.gpus[: plan.hw.n_gpus_per_node]]
    parts = [machine.hostname, plan.hw.card.kind.name, f"python {machine.python}", f"torch {machine.torch}"]
    return ", ".join([*parts, f"triton {machine.around.triton}", *cards])


def _doubtful(plan: RunPlan) -> tuple[str, ...]:
    """Copies only between cards, and not when somebody has switched them off."""
    is_cuda = plan.hw.card.kind is CardKind.cuda
    names = ("compile",) if plan.trainer.compile else ()
    return (*names, "copies") if is_cuda and plan.hw.n_gpus_per_node > 1 and P2P_OFF not in os.environ else names


def _answers(plan: RunPlan, names: tuple[str, ...], key: str, runs_dir: Path) -> Mapping[str, str]:
    known = _read(runs_dir)
    answers = dict(known.get(key, {}))
    device = {CardKind.cpu: "cpu", CardKind.mps: "mps"}.get(plan.hw.card.kind, "cuda")
    for name in names:
        if name not in answers:
            told = _ask(device, name)
            if told is None:  # no answer is no reason to change the plan, and is asked again
                continue
            answers[name] = told
    if answers != known.get(key, {}):
        _write(runs_dir, {**known, key: answers})
    return answers


def _ask(device: str, name: str) -> str | None:
    """ "" when it works, else why not; None when the trial itself could not be held."""
    command = [sys.executable, "-m", "trainers.trial", device, name]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):  # a busy machine may not even have loaded torch by then
        return None
    if done.returncode == -getattr(signal, "SIGALRM", 0):
        return "they do not come to an end"
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return last if done.returncode < 0 else None
    return str(json.loads(lines[-1])[name])


def _read(runs_dir: Path) -> dict[str, dict[str, str]]:
    """Empty when there is none, or none that can be read."""
    try:
        content = json.loads((runs_dir / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(runs_dir: Path, content: dict[str, dict[str, str]]) -> None:
    """What cannot be kept is asked again."""
    temporary = runs_dir / f"{FILE}.{os.getpid()}"
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        temporary.replace(runs_dir / FILE)
    except OSError:
        temporary.unlink(missing_ok=True)


def _without(name: str, message: str) -> Finding:
    done = {
        "compile": ("the run goes on without it, and the bill counts that", "trainer.compile=false says so yourself"),
        "copies": (f"{P2P_OFF}=1 is set for the ranks", "a newer driver"),
    }[name]
    return Finding(check=f"software.{name}", severity=Severity.warning, message=f"{message}; {done[0]}", fix=done[1])
