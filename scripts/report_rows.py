"""What does one line of the ledger say about its bill? Pairs of estimated and actual, where it ran, how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from preflight.actual import TOTALS, is_whole
from preflight.errors import ExitCode
from preflight.units import format_bytes, format_seconds, format_usd

ENDINGS = {
    ExitCode.OK: "done", ExitCode.STOPPED_AT_BUDGET: "stopped at the budget",
    ExitCode.INTERRUPTED: "interrupted", ExitCode.TERMINATED: "terminated",
}  # fmt: skip
DECISIONS = {"go": "go", "go_lowered": "lowered", "refuse": "refused", "wrong_machine": "wrong machine"}
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One number that bills and runs have in common."""

    leaf: str
    title: str
    say: Callable[[float], str]


QUANTITIES = (
    Quantity(leaf="peak_device_bytes", title="peak memory", say=format_bytes),
    Quantity(leaf="step_seconds", title="step", say=format_seconds),
    Quantity(leaf="wall_seconds", title="wall time", say=format_seconds),
    Quantity(leaf="cost_usd", title="cost", say=format_usd),
)
CSV_LEAVES = (
    "peak_allocated_bytes", "peak_reserved_bytes", *(quantity.leaf for quantity in QUANTITIES),
    "tokens_per_second", "mfu", "energy_kwh", "co2_kg", "val_loss",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Both sides of one number. None: unknown, not measured, or no band."""

    estimated: float | None
    low: float | None
    high: float | None
    actual: float | None
    is_comparable: bool = True  # False: the estimate is of the whole run, the measurement of a part of it

    @property
    def ratio(self) -> float | None:
        """actual / estimated."""
        if not self.is_comparable or self.actual is None or not self.estimated:
            return None
        return self.actual / self.estimated

    @property
    def is_covered(self) -> bool | None:
        """Whether the band held the measurement."""
        if not self.is_comparable or self.low is None or self.high is None or self.actual is None:
            return None
        return self.low <= self.actual <= self.high


def pair_of(record: Record, leaf: str) -> Pair:
    """From one line of the ledger."""
    estimate, actual = record["estimate"], record.get("actual") or {}
    name = f"estimate/{leaf}"
    return Pair(
        estimated=_number(estimate.get(name)),
        low=_number(estimate.get(f"{name}_low")),
        high=_number(estimate.get(f"{name}_high")),
        actual=_number(actual.get(f"actual/{leaf}")),
        is_comparable=leaf not in TOTALS or not is_partial(record),
    )


def _number(value: Any) -> float | None:
    """Lines edited by hand hold anything."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def is_partial(record: Record) -> bool:
    """A run that was stopped, that failed, or that went on after another: its totals are of some steps only."""
    actual = record.get("actual")
    if not actual:
        return False
    done, first = _number(actual.get("actual/n_steps_done")), _number(actual.get("actual/first_step"))
    return not is_whole(int(first or 0), int(done or 0), record["plan"]["trainer"]["n_steps"])


def machine(record: Record) -> str:
    """`4 x 4090`, `2 x 8 x h100`."""
    hw = record["plan"]["hw"]
    counts = [n for n in (hw["n_nodes"], hw["n_gpus_per_node"]) if n > 1]
    return " x ".join([*map(str, counts), hw["card"]["name"]])


def outcome(record: Record) -> str:
    """The verdict, and how the run ended when there was one."""
    decision = DECISIONS.get(record["decision"], record["decision"])
    if record.get("actual") is None:
        return f"{decision} ({record['exit_code']})"
    ended = ENDINGS.get(record["exit_code"], f"exit {record['exit_code']}")
    return ended if record["decision"] == "go" else f"{decision}, {ended}"


def precision(record: Record) -> str:
    """Of the plan that ran."""
    return str(record["plan"]["trainer"]["precision"])


def model(record: Record) -> str:
    """The preset's name."""
    return str(record["plan"]["model"]["name"])


def terms(record: Record, side: str) -> dict[str, float]:
    """Wall-time terms of the estimate or the actual, in their order."""
    flat, start = record.get(side) or {}, f"{side}/wall_"
    return {
        name.removeprefix(start).removesuffix("_seconds"): value
        for name, value in flat.items()
        if name.startswith(start) and name.removeprefix(start) not in BAND_OF_WALL and _number(value)
    }


BAND_OF_WALL = ("seconds", "seconds_low", "seconds_high")


def memory_terms(record: Record) -> dict[str, float]:
    """What the formulas alone say of the peak, term by term; empty in imported lines."""
    found = (record.get("raw") or {}).get("estimate/memory_terms_bytes") or {}
    return {str(name): float(value) for name, value in found.items() if value}


def errors(records: Sequence[Record], leaf: str) -> list[float]:
    """|actual / estimated - 1| of every run that has both sides, oldest first."""
    ratios = [pair_of(record, leaf).ratio for record in records]
    return [abs(ratio - 1) for ratio in ratios if ratio is not None]


def held(records: Sequence[Record], leaf: str) -> list[bool]:
    """Whether the band held the measurement, of every run that says so."""
    covered = [pair_of(record, leaf).is_covered for record in records]
    return [each for each in covered if each is not None]
