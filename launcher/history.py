"""What do earlier runs and measurements of this place say? Imported only where there are some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from conf.schema import Config
from launcher.output import complain
from preflight.calibration.calibrate import calibrate
from preflight.calibration.probes import Record, read_probes, with_probes
from preflight.plan import RunPlan
from preflight.record import Ledger, read_ledger


def calibrated(plan: RunPlan, place: Path) -> RunPlan:
    """The plan with what was measured here, and the factors that earlier runs give it."""
    ledger = _ledger(place)
    plan = with_probes(plan, read_probes(place))
    return replace(plan, calibration=calibrate(plan, ledger.records, ledger.sha256))


def earlier(config: Config, place: Path) -> tuple[Sequence[Record], Sequence[Record]]:
    """The newest runs and the measurements; none with calibration=off."""
    if config.calibration == "off":
        return (), ()
    return _ledger(place).records, read_probes(place)


def _ledger(place: Path) -> Ledger:
    """The newest runs; lines that are none are told."""
    ledger = read_ledger(place, n_last=100)
    for line in ledger.told():
        _complain_once(line)
    return ledger


@cache
def _complain_once(line: str) -> None:
    """However many rows of a grid read the same ledger."""
    complain(line)
