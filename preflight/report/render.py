"""How a bill is shown: `report=text|full|json`, a grid's rows, and estimated against actual after the run.

Everything here returns text or plain objects; printing is left to the caller.
"""

from __future__ import annotations

import json

from conf.choices import ReportChoice
from preflight.bill import Bill
from preflight.report.comparison import actual_text
from preflight.report.document import bill_document, error_document
from preflight.report.grid import grid_csv, grid_error_row, grid_header, grid_row
from preflight.report.text import bill_text

__all__ = [
    "actual_text",
    "bill_document",
    "bill_text",
    "error_document",
    "grid_csv",
    "grid_error_row",
    "grid_header",
    "grid_row",
    "render",
]


def render(bill: Bill, choice: ReportChoice) -> str:
    """The bill as asked for, with a newline at its end."""
    if choice is ReportChoice.json:
        return json.dumps(bill_document(bill), allow_nan=False) + "\n"
    if choice is ReportChoice.full:
        from preflight.report.full import full_text  # most bills are one screen: they do not pay for this

        return full_text(bill)
    return bill_text(bill)
