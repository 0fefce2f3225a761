"""Factors from what earlier runs on the same card or machine measured: a pure function of the ledger's records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from preflight.plan import Calibration, RunPlan


def calibrate(plan: RunPlan, records: Sequence[dict[str, Any]], ledger_sha256: str | None) -> Calibration:
    """Matches card or machine, torch version, precision, compile, family; never crosses cards."""
    raise NotImplementedError
