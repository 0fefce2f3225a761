"""What does a W&B run show of the bill besides numbers? A table estimated | actual | ratio, charts of it, and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from preflight.units import GIB

Row = tuple[str, float, float, float | None]  # leaf, estimated, actual, ratio
RUN_FILES = ("plan.json", "report.txt", "metrics.jsonl")


def charts(rows: Sequence[Row]) -> dict[str, Any]:
    """Of `trainers.tracking.comparison`; a chart without bars is left out."""
    import wandb

    shown: dict[str, Any] = {
        "estimated_vs_actual": wandb.Table(
            columns=["name", "estimated", "actual", "ratio"], data=[list(row) for row in rows]
        )
    }
    ratios = [[leaf, ratio] for leaf, _, _, ratio in rows if ratio is not None]
    wall = [(leaf.removeprefix("wall_").removesuffix("_seconds"), estimated, actual) for leaf, estimated, actual, _
            in rows if leaf.startswith("wall_")]  # fmt: skip
    memory = [(leaf.removesuffix("_bytes"), estimated / GIB, actual / GIB) for leaf, estimated, actual, _
              in rows if leaf.startswith("peak_")]  # fmt: skip
    bars = (
        ("charts/actual_over_estimated", "actual / estimated: 1 is a perfect bill", ratios),
        ("charts/wall_time", "wall time, seconds", _both_sides(wall)),
        ("charts/peak_memory", "peak memory, GiB", _both_sides(memory)),
    )
    for key, title, data in bars:
        if data:
            table = wandb.Table(columns=["name", "value"], data=data)
            shown[key] = wandb.plot.bar(table, "name", "value", title=title)
    return shown


def _both_sides(rows: Sequence[tuple[str, float, float]]) -> list[list[Any]]:
    """W&B's bar chart has one bar a label."""
    return [
        [f"{name} ({side})", value]
        for name, estimated, actual in rows
        for side, value in (("estimated", estimated), ("actual", actual))
    ]


def upload(library: Any, run: Any, run_dir: Path) -> None:
    """`tracking.artifacts=true`: the run's papers, and its newest checkpoint. trackio has W&B's names for it."""
    papers = library.Artifact(f"run-{run.id}", type="run")
    for name in RUN_FILES:
        if (run_dir / name).is_file():
            papers.add_file(str(run_dir / name))
    run.log_artifact(papers)
    checkpoints = sorted((run_dir / "checkpoints").glob("step_*.pt"))
    if checkpoints:
        model = library.Artifact(f"model-{run.id}", type="model")
        model.add_file(str(checkpoints[-1]))
        run.log_artifact(model)
