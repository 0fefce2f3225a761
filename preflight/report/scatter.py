"""The picture of a comparison: hours against money, the Pareto front drawn through its machines."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from preflight.compare import Comparison, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

N_LABELS = 12  # more would lie on each other


class Point(NamedTuple):
    """A machine of known hours and money; one that costs nothing has no place on a logarithmic axis."""

    hours: float
    usd: float
    hw: str


def compare_png(comparison: Comparison) -> bytes:
    """A PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    _draw(axes, comparison)
    if points(comparison.rows):
        axes.set_xscale("log")
        axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    axes.set_xlabel("hours")
    axes.set_ylabel("money (USD)")
    axes.set_title(f"{comparison.model_name}, {comparison.total_tokens:,} tokens: a point an offer")
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    return picture.getvalue()


def _draw(axes: Axes, comparison: Comparison) -> None:
    kept = points(row for row in comparison.rows if row.is_go)
    over = points(row for row in comparison.rows if row.fits and not row.is_go)
    front = sorted(points(row for row in comparison.rows if row.is_on_front))
    for label, group, style in (
        ("keeps the budgets", kept, {"color": "tab:blue", "marker": "o", "linestyle": "", "markersize": 4}),
        ("over a budget", over, {"color": "tab:gray", "marker": "x", "linestyle": "", "markersize": 4}),
        ("no other is both cheaper and faster", front, {"color": "tab:orange", "marker": "o"}),
    ):
        axes.plot([point.hours for point in group], [point.usd for point in group], label=label, **style)
    for point in front[:: 1 + len(front) // N_LABELS]:
        axes.annotate(point.hw, point[:2], xytext=(5, 5), textcoords="offset points", fontsize=8)


def points(rows: Iterable[Row]) -> list[Point]:
    """Where the rows stand."""
    return [
        Point(row.hours.mid, row.usd.mid, row.hw)
        for row in rows
        if row.hours is not None and row.usd is not None and row.usd.mid > 0
    ]
