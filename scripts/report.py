"""How right were the bills? Estimated against actual over every run in the ledger.

python scripts/report.py [RUNS_DIR | LEDGER.jsonl]     tables here, a picture beside the ledger
python scripts/report.py --html report.html            one page with all charts, to open or to send
python scripts/report.py --csv                         every number, for a spreadsheet
python scripts/report.py --markdown                    for docs/run-log.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs from any folder

from preflight.errors import ExitCode
from preflight.record import ledger_path, read_ledger
from preflight.units import GIB
from scripts.report_charts import panel, whole_runs
from scripts.report_page import page
from scripts.report_rows import Record, pair_of
from scripts.report_tables import markdown, print_groups, print_table, summary, write_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 when there is nothing to report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("place", nargs="?", type=Path, help="folder of runs, or a ledger file (default: runs)")
    where.add_argument("--runs-dir", type=Path, default=Path("runs"), help="the same, as other scripts take it")
    parser.add_argument("--csv", action="store_true", help="print CSV instead of the tables; no picture")
    parser.add_argument("--markdown", action="store_true", help="print Markdown instead of the tables; no picture")
    parser.add_argument("--html", type=Path, help="write the page there; no picture")
    parser.add_argument("--png", type=Path, help="where the picture goes (default: report.png beside the ledger)")
    arguments = parser.parse_args(argv)
    place = arguments.place or arguments.runs_dir
    ledger = read_ledger(place)
    for warning in ledger.told():
        print(warning, file=sys.stderr)
    path = ledger_path(place)
    if not ledger.records:
        print(f"no runs in {path} yet; `python launch.py` makes the first", file=sys.stderr)
        return ExitCode.CONFIG
    if arguments.csv:
        write_csv(ledger.records)
    elif arguments.markdown:
        print(markdown(ledger.records), end="")
    else:
        print_table(ledger.records)
        print_groups(ledger.records)
        print("\n".join(summary(ledger.records)))
        try:
            if arguments.html:
                print(save_page(ledger.records, arguments.html))
            else:
                print(save_plot(ledger.records, arguments.png or path.parent / "report.png"))
        except OSError as error:
            option = "--html=" if arguments.html else "--png="
            print(f"not written: {error}\n  To fix: {option}A_FILE_YOU_CAN_WRITE", file=sys.stderr)
            return ExitCode.CONFIG
    return ExitCode.OK


def save_page(records: Sequence[Record], path: Path) -> str:
    """One file; what was done, in words."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(records), encoding="utf-8")
    return f"page: {path}"


def save_plot(records: Sequence[Record], path: Path) -> str:
    """Predicted and actual wall time and memory, run by run; what was done, in words."""
    measured = [record for record in whole_runs(records) if pair_of(record, "wall_seconds").actual is not None]
    if not measured:
        return "no whole run was measured yet: no plot"
    figure = draw(measured)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return f"plot: {path}"


def draw(measured: Sequence[Record]) -> Figure:
    """Two panels over the runs in the order they were made; bars are the bill's band."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True)
    panel(upper, [pair_of(record, "wall_seconds") for record in measured], 1.0, colours=("tab:blue", "tab:orange"))
    panel(lower, [pair_of(record, "peak_device_bytes") for record in measured], GIB, colours=("tab:blue", "tab:orange"))
    upper.set_ylabel("wall time (s)")
    lower.set_ylabel("peak memory (GiB)")
    upper.set_title("The bill before the run, and what the run took")
    upper.legend()
    lower.set_xlabel("run, in the order they were made")
    lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
