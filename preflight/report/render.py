"""How a bill is shown: `report=text|full|json`. Returns text; printing is left to the caller."""

from __future__ import annotations

from conf.choices import ReportChoice
from preflight.bill import Bill


def render(bill: Bill, choice: ReportChoice) -> str:
    """The bill as asked for, with a newline at its end. Each pays for its own module alone."""
    if choice is ReportChoice.json:
        import json

        from preflight.report.document import bill_document

        return json.dumps(bill_document(bill), allow_nan=False) + "\n"
    if choice is ReportChoice.full:
        from preflight.report.full import full_text

        return full_text(bill)
    from preflight.report.text import bill_text

    return bill_text(bill)
