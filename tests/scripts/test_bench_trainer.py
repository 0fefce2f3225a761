"""The arithmetic of the trainer's benches; what they run is run by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.bench_gpu import race
from scripts.bench_trainer import row
from scripts.trainer_runs import HELD_OUT, WITH_PEAK, Measured, start


def measured(step_seconds: float, peak_bytes: int = 0) -> Measured:
    return Measured(
        step_seconds=step_seconds,
        tokens_per_second=4096 / step_seconds,
        peak_bytes=peak_bytes,
        first_step_excess_seconds=0.0,
        val_loss=float("nan"),
    )


def test_row_compares_within_a_round_when_the_machine_changes_between_rounds():
    ours, theirs = [measured(1.0, 7), measured(4.0, 9), measured(1.0)], [measured(2.0), measured(8.0), measured(3.0)]
    line = row("bf16", ours, theirs, 2.8)
    assert (line.speedup, line.spread, line.peak_bytes) == (2.0, (2.0, 3.0), 9)
    assert line.tokens_per_second == 4096


def test_race_goes_on_while_the_longest_run_fits_into_what_is_left():
    left = iter([1e9, 1e9, -1.0, -1.0, -1.0, -1.0])
    runs = race({"a": measured, "b": measured}, lambda: next(left))
    assert {name: list(of_one) for name, of_one in runs.items()} == {"a": [12, 24], "b": [12, 24]}


def test_race_leaves_out_what_does_not_fit():
    def too_large(n: int) -> Measured:
        raise SystemExit(f"{n}: out of memory")

    runs = race({"a": measured, "b": too_large}, lambda: 1e9)
    assert list(runs["a"]) == [12, 24, 48, 96]
    assert runs["b"] == {}


def test_start_ends_with_the_words_of_what_failed(tmp_path: Path):
    with pytest.raises(SystemExit, match="no such luck"):
        start([sys.executable, "-c", "raise SystemExit('no such luck')"], "", {}, tmp_path)
    output, peak_bytes = start([sys.executable, "-S", "-c", "print('done')"], "", {}, tmp_path)
    assert (output, peak_bytes > 2**20) == ("done\n", True)


def test_programs_for_the_baseline_are_sound():
    for program in (HELD_OUT, WITH_PEAK):
        compile(program, "program", "exec")
