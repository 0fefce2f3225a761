"""`action=compare`: the same job on every card and offer as one table; launches nothing, writes only what is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conf.choices import ReportChoice
from conf.schema import Config
from launcher.files import write_whole
from launcher.output import say
from preflight.compare import Comparison, compare
from preflight.errors import ExitCode
from preflight.machine.snapshot import probe
from preflight.report.compare import compare_csv, compare_document, compare_exit_code, compare_text

Records = Sequence[Mapping[str, Any]]


def compared(config: Config, command: str, records: Records, probes: Records) -> Comparison:
    """ConfigError carries all problems."""
    created_at = datetime.now(UTC).isoformat(timespec="seconds")
    machine = probe(Path(config.runs_dir))
    return compare(config, machine, command=command, created_at=created_at, records=records, probes=probes)


def show(comparison: Comparison, report: ReportChoice) -> ExitCode:
    """Files first, then the table or the one JSON document."""
    if comparison.options.csv is not None:
        write_whole("compare.csv", comparison.options.csv, compare_csv(comparison).encode())
    if comparison.options.png is not None:
        from preflight.report.scatter import compare_png  # matplotlib: half a second

        write_whole("compare.png", comparison.options.png, compare_png(comparison))
    if report is ReportChoice.json:
        say(json.dumps(compare_document(comparison), allow_nan=False))
    else:
        say(compare_text(comparison, is_full=report is ReportChoice.full).removesuffix("\n"))
    return compare_exit_code(comparison)
