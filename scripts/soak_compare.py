"""Is the run that was killed again and again the one that was not? Losses, evaluations, weights, and the ledger."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

EVAL_INTERVAL = 7


def differences(one: Path, other: Path, n_steps: int) -> list[str]:
    """What the disturbed run has lost, gained or changed."""
    faults = []
    for name, steps in (("train/loss", range(1, n_steps + 1)), ("val/loss", evaluated_steps(n_steps))):
        expected, found = curve(one, name), curve(other, name)
        if [step for step, _ in found] != list(steps):
            odd = Counter(step for step, _ in found) - Counter(steps) + (Counter(steps) - Counter(dict(found).keys()))
            faults.append(f"{name}: steps that are missing or told twice: {sorted(odd)[:10]}")
        faults += [
            f"{name} of step {step}: {a} undisturbed, {b} disturbed"
            for (step, a), (_, b) in zip(expected, found, strict=False)
            if a != b
        ][:3]
    return faults + weight_faults(one, other)


def weight_faults(one: Path, other: Path) -> list[str]:
    """Weights and optimizer of the last checkpoints, to the bit."""
    import torch  # seconds

    from trainers import checkpoint

    paths = [checkpoint.find_latest(folder)[0] for folder in (one, other)]
    if None in paths:
        return ["no checkpoint at the end"]
    left, right = (checkpoint.load(path) for path in paths if path is not None)
    if left["step"] != right["step"]:
        return [f"the last checkpoints are of steps {left['step']} and {right['step']}"]
    pairs = [(name, weight, right["model"][name]) for name, weight in left["model"].items()]
    pairs += [
        (f"{name} of parameter {i}", value, right["optimizer"]["state"][i][name])
        for i, state in left["optimizer"]["state"].items()
        for name, value in state.items()
    ]
    return [f"{name} differs" for name, a, b in pairs if not torch.equal(torch.as_tensor(a), torch.as_tensor(b))]


def ledger_faults(runs_dir: Path, n_begun: int, n_launches: int) -> list[str]:
    """Each launch that began has its line, also one whose launcher was killed; the others died before the bill."""
    n_lines = len((runs_dir / "ledger.jsonl").read_text().splitlines())
    print(f"{n_lines} lines in the ledger, {n_begun} of {n_launches} launches had begun when they were killed")
    return [] if n_begun <= n_lines <= n_launches else [f"{n_begun} launches began, {n_lines} lines in the ledger"]


def evaluated_steps(n_steps: int) -> list[int]:
    """Every interval, and the last one."""
    return sorted({*range(EVAL_INTERVAL, n_steps + 1, EVAL_INTERVAL), n_steps})


def curve(run_dir: Path, name: str) -> list[tuple[int, float]]:
    """In the order of the file."""
    return [(row["step"], row[name]) for row in rows_of(run_dir) if name in row]


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    """Whole lines; the last one may be in the making."""
    path = run_dir / "metrics.jsonl"
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:  # torn by a kill: the resumed run drops it
            continue
    return rows


def last_step(run_dir: Path) -> int:
    """The last one that was logged."""
    rows = rows_of(run_dir)
    return int(rows[-1]["step"]) if rows else 0
