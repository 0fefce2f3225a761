"""The report as pictures, one question each. Matplotlib draws; `report_page` puts them into a page.

Colours are names (INK, BILL, ...) that the page replaces by its own, so that one drawing serves light and dark.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from preflight.units import GIB, SECONDS_PER_HOUR
from scripts.report_rows import QUANTITIES, Pair, Record, errors, held, is_partial, memory_terms, pair_of, terms
from scripts.report_tables import groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GRID, BILL, RUN, GOOD, BAD = "#010203", "#040506", "#070809", "#0a0b0c", "#0d0e0f", "#101112"
SHADES = ("#131415", "#161718", "#191a1b", "#1c1d1e", "#1f2021", "#222324", "#252627", "#28292a", "#2b2c2d")
WIDTH_INCHES, HEIGHT_INCHES = 4.9, 3.1
FONT_POINTS = 10
WIDE_RANGE = 10.0  # largest over smallest: from there on the scale is logarithmic
MAX_RUNS = 200  # the newest
N_WINDOW = 5  # runs of which the median is drawn
N_BARS = 8
NOMINAL_COVERAGE = 0.8  # bands reach from p10 to p90


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A question, and the drawing that answers it."""

    title: str
    words: str  # what is to be seen, for those who cannot
    draw: Callable[[Sequence[Record], Axes], bool]  # False: there is nothing to draw


def figure_of(chart: Chart, records: Sequence[Record]) -> Figure | None:
    """None where the ledger says nothing about it."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(drawing_style()):
        figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        return figure if chart.draw(records[-MAX_RUNS:], axes) else None


def drawing_style() -> Any:
    """Matplotlib's settings: text stays text."""
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    return {
        "svg.fonttype": "none", "svg.hashsalt": "preflight", "font.size": FONT_POINTS, "font.family": "sans-serif",
        "axes.titlesize": FONT_POINTS, "legend.fontsize": FONT_POINTS, "xtick.labelsize": FONT_POINTS,
        "ytick.labelsize": FONT_POINTS, "legend.frameon": False, "grid.color": GRID, "axes.axisbelow": True,
        **dict.fromkeys(inked, INK),
    }  # fmt: skip


def whole_runs(records: Sequence[Record]) -> list[Record]:
    """Measured from the first step to the last."""
    return [record for record in records if record.get("actual") and not is_partial(record)]


def _errors_over_time(records: Sequence[Record], axes: Axes) -> bool:
    """Falling lines: the estimator learns."""
    drawn = 0
    for quantity, colour in zip(QUANTITIES, (SHADES[0], SHADES[1], SHADES[2], SHADES[3]), strict=False):
        found = errors(records, quantity.leaf)
        if not found:
            continue
        smooth = [statistics.median(found[max(0, i - N_WINDOW + 1) : i + 1]) * 100 for i in range(len(found))]
        numbers = list(range(1, len(found) + 1))
        axes.plot(numbers, smooth, color=colour, label=quantity.title, marker="o" if len(found) < 30 else "", ms=3)
        drawn += 1
    axes.set_ylim(bottom=0)
    axes.set_ylabel("error (%)")
    _runs_below(axes)
    return _finished(axes, drawn)


def pairs_over_time(leaf: str, unit: float, label: str) -> Callable[[Sequence[Record], Axes], bool]:
    """Bills with their bands, measurements on top."""

    def draw(records: Sequence[Record], axes: Axes) -> bool:
        measured = [record for record in whole_runs(records) if pair_of(record, leaf).actual is not None]
        panel(axes, [pair_of(record, leaf) for record in measured], unit)
        axes.set_ylabel(label)
        _runs_below(axes)
        return _finished(axes, len(measured))

    return draw


def panel(axes: Axes, pairs: Sequence[Pair], unit: float, colours: tuple[str, str] = (BILL, RUN)) -> None:
    """Logarithmic where the runs differ by more than a factor of ten."""
    billed = [(i, pair.estimated, pair) for i, pair in enumerate(pairs, start=1) if pair.estimated is not None]
    axes.errorbar(
        [i for i, _, _ in billed],
        [mid / unit for _, mid, _ in billed],
        yerr=[
            [(mid - _or(pair.low, mid)) / unit for _, mid, pair in billed],
            [(_or(pair.high, mid) - mid) / unit for _, mid, pair in billed],
        ],
        fmt="_", markersize=10, capsize=2, color=colours[0], label="bill (p10-p90)",
    )  # fmt: skip
    found = [(i, pair.actual / unit) for i, pair in enumerate(pairs, start=1) if pair.actual is not None]
    axes.plot([i for i, _ in found], [y for _, y in found], "o", ms=4, color=colours[1], label="measured", zorder=3)
    values = [mid / unit for _, mid, _ in billed if mid > 0] + [y for _, y in found if y > 0]
    if values and max(values) > WIDE_RANGE * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(visible=True, axis="y")


def _by_group(records: Sequence[Record], axes: Axes) -> bool:
    """A bar for every card, model and precision."""
    rows = [(f"{value}", errors(mine, "wall_seconds")) for _, value, mine in groups(records)]
    rows = [(name, found) for name, found in rows if found][-2 * N_BARS :]
    axes.barh([f"{name} ({len(found)})" for name, found in rows], [statistics.median(f) * 100 for _, f in rows],
              color=BILL)  # fmt: skip
    axes.invert_yaxis()
    axes.set_xlabel("median error of the wall time (%)")
    return bool(rows)


def _memory_waterfall(records: Sequence[Record], axes: Axes) -> bool:
    """What the newest whole run's memory was made of, largest first."""
    known = [record for record in whole_runs(records) if memory_terms(record)]
    if not known:
        return False
    pieces = sorted(memory_terms(known[-1]).items(), key=lambda item: -item[1])
    if len(pieces) > N_BARS:
        pieces = [*pieces[: N_BARS - 1], ("others", sum(size for _, size in pieces[N_BARS - 1 :]))]
    reached = 0.0
    for name, size in pieces:
        axes.barh(name.replace("_", " "), size / GIB, left=reached / GIB, color=BILL)
        reached += size
    axes.barh("formulas in all", reached / GIB, color=BILL)
    actual = pair_of(known[-1], "peak_device_bytes").actual
    if actual is not None:
        axes.barh("measured", actual / GIB, color=RUN)
    axes.invert_yaxis()
    axes.set_xlabel(f"peak memory of {known[-1]['name']}'s rank (GiB)")
    return True


def _wall_terms(records: Sequence[Record], axes: Axes) -> bool:
    """Estimated beside actual for the newest runs."""
    newest = [record for record in whole_runs(records) if terms(record, "actual")][-N_BARS:]
    names = list(
        dict.fromkeys(name for record in newest for side in ("estimate", "actual") for name in terms(record, side))
    )
    labels = [f"{i} {side}" for i in range(1, len(newest) + 1) for side in ("bill", "run")]
    bottom = [0.0] * len(labels)
    for shade, name in enumerate(names):
        heights = [terms(record, side).get(name, 0.0) for record in newest for side in ("estimate", "actual")]
        if not any(heights):
            continue  # every line of the legend takes room from the drawing
        axes.bar(labels, heights, bottom=bottom, color=SHADES[shade % len(SHADES)], label=name.replace("_", " "))
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_ylabel("seconds")
    axes.tick_params(axis="x", rotation=90)
    return _finished(axes, len(newest), columns=3)


def _against_budget(records: Sequence[Record], axes: Axes) -> bool:
    """Money where a budget was set in money, else hours: 100 % is all of it."""
    rows = [row for record in records if record.get("actual") for row in _spent(record)][-N_BARS:]
    labels = [f"{i} {what}" for i, (what, *_) in enumerate(rows, start=1)]
    axes.barh(labels, [share * 100 for _, share, _ in rows], color=[BAD if share > 1 else GOOD for _, share, _ in rows],
              label="spent")  # fmt: skip
    axes.plot([billed * 100 for *_, billed in rows], labels, "|", ms=12, mew=2, color=INK, label="bill")
    axes.axvline(100, color=BAD, linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("of the budget (%)")
    return bool(rows)


def _spent(record: Record) -> list[tuple[str, float, float]]:
    """(words, actual / budget, estimated / budget)."""
    budget = record["plan"].get("budget") or {}
    for limit, leaf, unit, what in (
        ("max_cost_usd", "cost_usd", 1.0, "money"),
        ("max_hours", "wall_seconds", SECONDS_PER_HOUR, "hours"),
    ):
        pair, most = pair_of(record, leaf), budget.get(limit)
        if most and pair.actual is not None and pair.estimated is not None:
            return [(what, pair.actual / unit / most, pair.estimated / unit / most)]
    return []


def _coverage(records: Sequence[Record], axes: Axes) -> bool:
    """Four in five is what the band promises."""
    rows = [(quantity.title, held(records, quantity.leaf)) for quantity in QUANTITIES]
    rows = [(name, covered) for name, covered in rows if covered]
    axes.barh([f"{name} ({len(covered)})" for name, covered in rows],
              [100 * sum(covered) / len(covered) for _, covered in rows], color=BILL)  # fmt: skip
    axes.axvline(NOMINAL_COVERAGE * 100, color=RUN, linewidth=1.5)
    axes.set_xlim(0, 100)
    axes.invert_yaxis()
    axes.set_xlabel("runs that the band held (%); 80 is right")
    return bool(rows)


CHARTS = (
    Chart(title="Is the estimator getting better?", draw=_errors_over_time,
          words=f"Median error of the last {N_WINDOW} bills, run by run"),
    Chart(title="Wall time", draw=pairs_over_time("wall_seconds", 1.0, "seconds"),
          words="The bill with its band, and what each run took"),
    Chart(title="Peak memory", draw=pairs_over_time("peak_device_bytes", GIB, "GiB"),
          words="The bill with its band, and what each run needed"),
    Chart(title="By card, model and precision", draw=_by_group, words="Median error of the wall time, number of runs"),
    Chart(title="What the memory is made of", draw=_memory_waterfall,
          words="Terms of the newest whole run, adding up to the peak"),
    Chart(title="Where the time goes", draw=_wall_terms, words="Terms of the wall time, bill beside run, newest runs"),
    Chart(title="Against the budget", draw=_against_budget, words="Spent of the budget, with the bill as a mark"),
    Chart(title="Do the bands hold?", draw=_coverage, words="Share of runs within the 80 % band"),
)  # fmt: skip


def _runs_below(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("run, in the order they were made")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _finished(axes: Axes, n_drawn: int, columns: int = 1) -> bool:
    """With a legend above the drawing, where it covers nothing."""
    if n_drawn:
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            ncols=max(2, columns),
            borderaxespad=0.2,
            columnspacing=1.0,
            handlelength=1.2,
            handletextpad=0.4,
            labelspacing=0.2,
        )
    return bool(n_drawn)


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
