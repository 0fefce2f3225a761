"""Imports are looked through for garbage less often, steps as always."""

from __future__ import annotations

import gc

from trainers.importing import THRESHOLDS, few_collections


def test_collector_is_as_before_after_the_imports_and_passes_over_them() -> None:
    before, n_frozen = gc.get_threshold(), gc.get_freeze_count()
    with few_collections():
        assert gc.get_threshold() == THRESHOLDS
    assert gc.get_threshold() == before
    assert gc.isenabled()
    assert gc.get_freeze_count() > n_frozen
