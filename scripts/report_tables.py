"""The report in words and numbers: a table a run, a summary, groups, CSV, Markdown."""

from __future__ import annotations

import csv
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from preflight.units import format_runs
from scripts.report_rows import (
    DECISIONS,
    QUANTITIES,
    Pair,
    Record,
    errors,
    held,
    is_partial,
    machine,
    model,
    outcome,
    pair_of,
    precision,
)

N_RECENT = 5
TABLE_WIDTH = 132  # where the output is no terminal
MAX_ROWS = 200  # of the table: the newest
CSV_LEAVES = (
    "peak_allocated_bytes", "peak_reserved_bytes", *(quantity.leaf for quantity in QUANTITIES),
    "tokens_per_second", "mfu", "energy_kwh", "co2_kg", "val_loss",
)  # fmt: skip
GROUPS: dict[str, Callable[[Record], str]] = {"card": machine, "model": model, "precision": precision}


def print_table(records: Sequence[Record]) -> None:
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
    for record in records[-MAX_ROWS:]:
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


def summary(records: Sequence[Record]) -> list[str]:
    """How many, how far off, and how often the band held."""
    decisions = Counter(DECISIONS.get(record["decision"], record["decision"]) for record in records)
    n_measured = sum(record.get("actual") is not None for record in records)
    lines = [f"{_bills(len(records))}: " + ", ".join(f"{n} {name}" for name, n in decisions.items()),
             f"{n_measured} measured"]  # fmt: skip
    for quantity in QUANTITIES:
        found, covered = errors(records, quantity.leaf), held(records, quantity.leaf)
        if found:
            band = f", band held {sum(covered)} of {len(covered)}" if covered else ""
            lines.append(
                f"{quantity.title:<12} median error {statistics.median(found):6.1%} of {len(found)}, "
                f"{statistics.median(found[-N_RECENT:]):6.1%} of the last {len(found[-N_RECENT:])}{band}"
            )
    n_partial = sum(is_partial(record) for record in records)
    if n_partial:
        lines.append(f"left out of wall time and cost: {format_runs(n_partial)} that did not do all steps in one go")
    return lines


def _bills(n: int) -> str:
    return "1 bill" if n == 1 else f"{n} bills"


def write_csv(records: Sequence[Record]) -> None:
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
            + [machine(record), precision(record)]
            + ["" if number is None else number for number in numbers]
        )


def groups(records: Sequence[Record]) -> Iterator[tuple[str, str, list[Record]]]:
    """(by what, its value, the measured runs of it), where there is more than one value to tell apart."""
    measured = [record for record in records if record.get("actual")]
    for by, of in GROUPS.items():
        values = sorted({of(record) for record in measured})
        if len(values) > 1:
            for value in values:
                yield by, value, [record for record in measured if of(record) == value]


def print_groups(records: Sequence[Record]) -> None:
    """Median errors by card, model and precision."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    rows = list(groups(records))
    if not rows:
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    table = Table(box=box.SIMPLE_HEAD, title="median error", title_justify="left", pad_edge=False)
    for title in ("by", "of", "runs", *(quantity.title for quantity in QUANTITIES)):
        table.add_column(title)
    for by, value, mine in rows:
        table.add_row(by, value, str(len(mine)), *(_median(errors(mine, quantity.leaf)) for quantity in QUANTITIES))
    console.print(table)


def _median(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.1%}" if found else "-"


def markdown(records: Sequence[Record]) -> str:
    """For docs/run-log.md: the summary, then a row a run."""
    titles = ("made", "run", "on", "precision", *(quantity.title for quantity in QUANTITIES), "outcome")
    lines = [f"* {line}" for line in summary(records)]
    lines += ["", "| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for record in records:
        cells = [cell(pair_of(record, quantity.leaf), quantity.say) for quantity in QUANTITIES]
        row = (_made(record), record["name"], machine(record), precision(record), *cells, outcome(record))
        lines.append("| " + " | ".join(word.replace("|", "/").replace("\n", " ") for word in row) + " |")
    return "\n".join(lines) + "\n"


def _made(record: Record) -> str:
    return str(record["created_at"])[:16].replace("T", " ")
