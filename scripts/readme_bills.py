"""Write the bills that README.md shows, as the program prints them on the machine they are for.

python scripts/readme_bills.py      (tests/e2e/test_readme.py fails when they are out of date)
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from launch import bill
from preflight.report.text import bill_text

BILL = re.compile(
    r"(```bash\npython launch\.py (?P<overrides>[^\n]*dry_run=true)\n```\n[^`]*```text\n).*?\n```", re.DOTALL
)


def with_bills(readme: str) -> str:
    """The page with each bill under its command worked out anew."""
    return BILL.sub(lambda match: match[1] + shown(match["overrides"]) + "```", readme)


def shown(overrides: str) -> str:
    """Without findings: those speak of this computer, the page is read on another."""
    answer = bill(*shlex.split(overrides), "calibration=off")
    return bill_text(replace(answer, verdict=replace(answer.verdict, findings=())))


if __name__ == "__main__":
    page = ROOT / "README.md"
    page.write_text(with_bills(page.read_text()))
