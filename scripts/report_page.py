"""The report as one page that needs nothing else: no network, no script; light or dark as the reader has it."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from scripts.report_charts import BAD, BILL, CHARTS, GOOD, GRID, INK, RUN, SHADES, Chart, drawing_style, figure_of
from scripts.report_rows import QUANTITIES, Record, machine, outcome, pair_of, precision
from scripts.report_tables import cell, summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_ROWS = 200  # of the table: the newest
# Light and dark: ink on paper at 7:1 and more, marks at 3:1 and more (WCAG 2.2); series after Okabe and Ito (2008).
COLOURS = {
    INK: ("ink", "#1b1f24", "#e6e9ed"),
    GRID: ("grid", "#d9dde2", "#3a414a"),
    BILL: ("bill", "#0072b2", "#56b4e9"),
    RUN: ("run", "#c04e00", "#f0a05a"),
    GOOD: ("good", "#00785a", "#35c79e"),
    BAD: ("bad", "#b3261e", "#ff8a80"),
    **{
        name: (f"shade{i}", light, dark)
        for i, (name, light, dark) in enumerate(
            zip(
                SHADES,
                ("#0072b2", "#c04e00", "#00785a", "#8e3b78", "#7a6a00", "#3f6f9f", "#5f6670", "#a0522d", "#4b4b9b"),
                ("#56b4e9", "#f0a05a", "#35c79e", "#e58ac6", "#e3d34a", "#9cc4ee", "#b3bac4", "#dd9a72", "#a9a9f0"),
                strict=True,
            )
        )
    },
}
STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; LIGHT }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; DARK } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 84rem; background: var(--paper); color: var(--ink);
       font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .5rem; } h2 { font-size: 1rem; margin: 0; }
ul { margin: .5rem 0 1rem; padding-left: 1.2rem; }
.charts { display: grid; gap: 1.5rem 1rem; grid-template-columns: repeat(auto-fill, minmax(min(21.5rem, 100%), 1fr)); }
figure { margin: 0; } figcaption { font-size: .875rem; }
svg { width: 100%; height: auto; display: block; }
.wide { overflow-x: auto; margin-top: 1.5rem; }
table { border-collapse: collapse; font-size: .875rem; white-space: nowrap; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--grid); }
"""


def page(records: Sequence[Record]) -> str:
    """A whole HTML document."""
    figures = [(chart, figure_of(chart, records)) for chart in CHARTS]
    drawings = "\n".join(_figure(chart, figure) for chart, figure in figures if figure is not None)
    lines = "".join(f"<li>{escape(line)}</li>" for line in summary(records))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>preflight: bills and runs</title><style>{_style()}</style></head><body>\n"
        f"<h1>Bills and runs</h1>\n<ul>{lines}</ul>\n"
        f'<div class="charts">\n{drawings}\n</div>\n{_table(records)}\n</body></html>\n'
    )


def _style() -> str:
    light = " ".join(f"--{name}: {colour};" for name, colour, _ in COLOURS.values())
    dark = " ".join(f"--{name}: {colour};" for name, _, colour in COLOURS.values())
    return STYLE.replace("LIGHT", light).replace("DARK", dark)


def _figure(chart: Chart, figure: Figure) -> str:
    return (
        f"<figure><figcaption><h2>{escape(chart.title)}</h2>{escape(chart.words)}</figcaption>\n"
        f"{svg(figure, chart.words)}</figure>"
    )


def svg(figure: Figure, words: str) -> str:
    """The drawing without a size, a background and colours of its own."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context(drawing_style()):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = text.replace("<svg", f'<svg role="img" aria-label="{escape(words)}"', 1)
    for colour, (name, *_) in COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    return re.sub(r"font: [^;\"]*?(\d[\d.]*px)[^;\"]*", r"font: \1 system-ui, sans-serif", text)


def _table(records: Sequence[Record]) -> str:
    titles = ("made", "run", "on", "precision", *(quantity.title for quantity in QUANTITIES), "outcome")
    rows = []
    for record in records[: -MAX_ROWS - 1 : -1]:
        cells = [cell(pair_of(record, quantity.leaf), quantity.say) for quantity in QUANTITIES]
        made = str(record["created_at"])[:16].replace("T", " ")
        words = (made, record["name"], machine(record), precision(record), *cells, outcome(record))
        rows.append("<tr>" + "".join(f"<td>{escape(str(word))}</td>" for word in words) + "</tr>")
    head = "".join(f"<th>{title}</th>" for title in titles)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
