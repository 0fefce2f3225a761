"""How right were the bills? Estimated against actual over every run in the ledger: a table, a CSV, a plot.

python scripts/report.py [RUNS_DIR | LEDGER.jsonl] [--csv] [--png PATH]
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs from any folder

from preflight.actual import TOTALS, is_whole
from preflight.errors import ExitCode
from preflight.record import ledger_path, read_ledger
from preflight.units import GIB, format_bytes, format_runs, format_seconds, format_usd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

N_RECENT = 5
WIDE_RANGE = 10.0  # largest over smallest: from there on the plot is logarithmic
TABLE_WIDTH = 132  # where the output is no terminal
ENDINGS = {ExitCode.OK: "done", ExitCode.INTERRUPTED: "interrupted", ExitCode.TERMINATED: "terminated"}
DECISIONS = {"go": "go", "go_lowered": "lowered", "refuse": "refused", "wrong_machine": "wrong machine"}


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


def pair_of(record: Mapping[str, Any], leaf: str) -> Pair:
    """From one line of the ledger."""
    estimate, actual = record["estimate"], record.get("actual") or {}
    name = f"estimate/{leaf}"
    return Pair(
        estimated=estimate.get(name),
        low=estimate.get(f"{name}_low"),
        high=estimate.get(f"{name}_high"),
        actual=actual.get(f"actual/{leaf}"),
        is_comparable=leaf not in TOTALS or not is_partial(record),
    )


def is_partial(record: Mapping[str, Any]) -> bool:
    """A run that was stopped, that failed, or that went on after another: its totals are of some steps only."""
    actual = record.get("actual")
    if not actual:
        return False
    done, first = actual["actual/n_steps_done"], actual.get("actual/first_step", 0)
    return not is_whole(first, done, record["plan"]["trainer"]["n_steps"])


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 when there is nothing to report."""
    parser = argparse.ArgumentParser(description="Estimated against actual over all runs in the ledger.")
    parser.add_argument("place", nargs="?", type=Path, default=Path("runs"), help="folder of runs, or a ledger file")
    parser.add_argument("--csv", action="store_true", help="print CSV instead of the table; no plot")
    parser.add_argument("--png", type=Path, help="where the plot goes (default: report.png beside the ledger)")
    arguments = parser.parse_args(argv)
    ledger = read_ledger(arguments.place)
    for warning in ledger.warnings:
        print(warning, file=sys.stderr)
    path = ledger_path(arguments.place)
    if not ledger.records:
        print(f"no runs in {path} yet; `python launch.py` makes the first", file=sys.stderr)
        return ExitCode.CONFIG
    if arguments.csv:
        write_csv(ledger.records)
        return ExitCode.OK
    print_table(ledger.records)
    print("\n".join(summary(ledger.records)))
    print(save_plot(ledger.records, arguments.png or path.parent / "report.png"))
    return ExitCode.OK


def print_table(records: Sequence[Mapping[str, Any]]) -> None:
    """A row a run, the refused ones too."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    table = Table(box=box.SIMPLE_HEAD, title="estimated > actual (ratio)", title_justify="left", pad_edge=False)
    for title in ("made", "run", "on", *(quantity.title for quantity in QUANTITIES), "outcome"):
        table.add_column(title, overflow="fold")
    for record in records:
        cells = [cell(pair_of(record, quantity.leaf), quantity.say) for quantity in QUANTITIES]
        table.add_row(str(record["created_at"])[5:16].replace("T", " "), record["name"], machine(record), *cells,
                      outcome(record))  # fmt: skip
    console.print(table)


def cell(pair: Pair, say: Callable[[float], str]) -> str:
    """`437 MiB > 509 MiB (1.17)`; one side alone where the other is not known."""
    estimated = "unknown" if pair.estimated is None else say(pair.estimated)
    if pair.actual is None:
        return estimated
    return f"{estimated} > {say(pair.actual)}" + ("" if pair.ratio is None else f" ({pair.ratio:.2f})")


def machine(record: Mapping[str, Any]) -> str:
    """`4 x 4090`, `2 x 8 x h100`."""
    hw = record["plan"]["hw"]
    counts = [n for n in (hw["n_nodes"], hw["n_gpus_per_node"]) if n > 1]
    return " x ".join([*map(str, counts), hw["card"]["name"]])


def outcome(record: Mapping[str, Any]) -> str:
    """The verdict, and how the run ended when there was one."""
    decision = DECISIONS.get(record["decision"], record["decision"])
    if record.get("actual") is None:
        return f"{decision} ({record['exit_code']})"
    ended = ENDINGS.get(record["exit_code"], f"exit {record['exit_code']}")
    return ended if record["decision"] == "go" else f"{decision}, {ended}"


def summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many, how far off, and how often the band held."""
    decisions = Counter(DECISIONS.get(record["decision"], record["decision"]) for record in records)
    n_measured = sum(record.get("actual") is not None for record in records)
    lines = [f"{_bills(len(records))}: " + ", ".join(f"{n} {name}" for name, n in decisions.items()),
             f"{n_measured} measured"]  # fmt: skip
    for quantity in QUANTITIES:
        pairs = [pair_of(record, quantity.leaf) for record in records]
        errors = [abs(pair.ratio - 1) for pair in pairs if pair.ratio is not None]
        covered = [pair.is_covered for pair in pairs if pair.is_covered is not None]
        if errors:
            band = f", band held {sum(covered)} of {len(covered)}" if covered else ""
            lines.append(
                f"{quantity.title:<12} median error {statistics.median(errors):6.1%} of {len(errors)}, "
                f"{statistics.median(errors[-N_RECENT:]):6.1%} of the last {len(errors[-N_RECENT:])}{band}"
            )
    n_partial = sum(is_partial(record) for record in records)
    if n_partial:
        lines.append(f"left out of wall time and cost: {format_runs(n_partial)} that did not do all steps in one go")
    return lines


def _bills(n: int) -> str:
    return "1 bill" if n == 1 else f"{n} bills"


def write_csv(records: Sequence[Mapping[str, Any]]) -> None:
    """Every number in base units, a line a run; empty: unknown."""
    facts = ("created_at", "run_id", "name", "device", "decision", "exit_code", "exit_reason")
    sides = ("estimated", "low", "high", "actual", "ratio")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*facts, "on", "precision", *(f"{leaf}_{side}" for leaf in CSV_LEAVES for side in sides)])
    for record in records:
        pairs = [pair_of(record, leaf) for leaf in CSV_LEAVES]
        numbers = [getattr(pair, side) for pair in pairs for side in sides]
        writer.writerow(
            [record.get(fact) for fact in facts]
            + [machine(record), record["plan"]["trainer"]["precision"]]
            + ["" if number is None else number for number in numbers]
        )


def save_plot(records: Sequence[Mapping[str, Any]], path: Path) -> str:
    """Predicted and actual wall time and memory, run by run; what was done, in words."""
    whole = [record for record in records if not is_partial(record)]
    measured = [record for record in whole if pair_of(record, "wall_seconds").actual is not None]
    if not measured:
        return "no whole run was measured yet: no plot"
    figure = draw(measured)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return f"plot: {path}"


def draw(measured: Sequence[Mapping[str, Any]]) -> Figure:
    """Two panels over the runs in the order they were made; bars are the bill's band."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True)
    panel(upper, [pair_of(record, "wall_seconds") for record in measured], 1.0)
    panel(lower, [pair_of(record, "peak_device_bytes") for record in measured], GIB)
    upper.set_ylabel("wall time (s)")
    lower.set_ylabel("peak memory (GiB)")
    upper.set_title("The bill before the run, and what the run took")
    upper.legend()
    lower.set_xlabel("run, in the order they were made")
    lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def panel(axes: Axes, pairs: Sequence[Pair], unit: float) -> None:
    """Bills with their bands, measurements on top; logarithmic where the runs differ by more than a factor of ten."""
    billed = [(i, pair.estimated, pair) for i, pair in enumerate(pairs, start=1) if pair.estimated is not None]
    axes.errorbar(
        [i for i, _, _ in billed],
        [mid / unit for _, mid, _ in billed],
        yerr=[
            [(mid - _or(pair.low, mid)) / unit for _, mid, pair in billed],
            [(_or(pair.high, mid) - mid) / unit for _, mid, pair in billed],
        ],
        fmt="_",
        markersize=14,
        capsize=3,
        color="tab:blue",
        label="bill (p10-p90)",
    )
    found = [(i, pair.actual / unit) for i, pair in enumerate(pairs, start=1) if pair.actual is not None]
    axes.plot([i for i, _ in found], [y for _, y in found], "o", color="tab:orange", label="measured", zorder=3)
    values = [mid / unit for _, mid, _ in billed if mid > 0] + [y for _, y in found if y > 0]
    if values and max(values) > WIDE_RANGE * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.25)


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


if __name__ == "__main__":
    sys.exit(main())
