"""What a run really needed. Leaf names as in the estimate, so that the two sides pair up everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Actual:
    """Measured by the trainer; leaf names as in the estimate. None: not measured or unknown."""

    peak_allocated_bytes: int | None  # max over ranks
    peak_reserved_bytes: int | None
    peak_device_bytes: int | None  # cpu: peak resident set
    base_memory_bytes: int | None  # cpu: resident set before the model was built
    step_seconds: float | None  # median after warm-up
    step_seconds_p90: float | None
    tokens_per_second: float | None
    mfu: float | None
    wall_seconds: float | None  # since launch.py started
    wall_terms_seconds: Mapping[str, float]  # startup, data, compile, steps, data_wait, evaluations, ...
    cost_usd: float | None
    energy_kwh: float | None
    co2_kg: float | None
    n_steps_done: int
    train_loss: float | None
    val_loss: float | None
    exit_code: int
    exit_reason: str
    failed_rank: int | None
    device: str  # what it ran on
    torch: str
    energy_is_measured: bool = False  # counted by the cards; False: assumed watts times hours
    first_step: int = 0  # steps that earlier segments had done: the totals are of those after it
    early_peaks_bytes: Mapping[str, int | None] = field(default_factory=dict)  # step_2_* and evaluation_* peaks
    logging_seconds: float | None = None  # of the steps' time: inside calls that print, write and track
    is_out_of_memory: bool = False  # although the bill said that it would do
    n_skipped_steps: int = 0  # of this segment: fp16 gradients were not finite, the scaler left the weights alone


NUMBERS = (
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "peak_device_bytes",
    "base_memory_bytes",
    "step_seconds",
    "step_seconds_p90",
    "tokens_per_second",
    "mfu",
    "wall_seconds",
    "cost_usd",
    "energy_kwh",
    "energy_is_measured",
    "co2_kg",
    "n_steps_done",
    "first_step",
    "is_out_of_memory",
    "n_skipped_steps",
    "logging_seconds",
    "train_loss",
    "val_loss",
)
PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes")
EARLY_PEAKS = tuple(f"{moment}_{peak}" for moment in ("step_2", "evaluation") for peak in PEAKS)


TOTALS = ("wall_seconds", "cost_usd", "energy_kwh", "co2_kg", "val_loss")  # leaves that grow with the steps done


def is_whole(first_step: int, n_steps_done: int, n_steps: int) -> bool:
    """Every step was done in this segment, so that its totals are the run's."""
    return first_step == 0 and n_steps_done >= n_steps


def wall_leaf(term: str) -> str:
    """The flat name of a wall-time term: `wall_startup_seconds`."""
    return f"wall_{term}_seconds"


def flat_actual(actual: Actual) -> dict[str, float | int | None]:
    """`actual/<leaf>` numbers; `preflight.flat.flat_estimate` has the same leaves. None: not measured."""
    leaves = {leaf: getattr(actual, leaf) for leaf in NUMBERS}
    leaves |= {leaf: actual.early_peaks_bytes.get(leaf) for leaf in EARLY_PEAKS}
    leaves |= {wall_leaf(term): seconds for term, seconds in actual.wall_terms_seconds.items()}
    return {f"actual/{leaf}": value for leaf, value in leaves.items()}
