"""A few of the random command lines that scripts/fuzz.py tries by the thousand."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.fuzz import Told, fault_of_mutant, fault_of_valid, mutant, run, valid_line


@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=5)
def test_a_valid_line_comes_to_a_verdict(seed: int):
    told = run(valid_line(random.Random(seed)))
    assert fault_of_valid(told._replace(seconds=0.0)) == "", told  # nothing is timed here


@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=6)
def test_a_faulty_line_is_answered_with_a_fix(seed: int):
    n_faults, line = mutant(random.Random(seed))
    told = run(line)
    assert fault_of_mutant(told._replace(seconds=0.0), n_faults) == "", told


def test_rules_that_are_broken_are_seen():
    line = ["model=tiny"]
    assert fault_of_valid(Told(line, 1, 0.1, "", "")) == "exit code 1"
    assert fault_of_valid(Told(line, 2, 0.1, "", "a fault of preflight: KeyError")) == "a fault of our own"
    assert fault_of_valid(Told(line, 2, 0.1, "", "something is wrong")) == "an error without a fix"
    assert fault_of_mutant(Told(line, 0, 9.0, "", ""), 1) == "9.0 s"
