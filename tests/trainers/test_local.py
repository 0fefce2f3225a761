"""What a training process finds in its environment."""

from __future__ import annotations

import subprocess
import sys

import pytest

from preflight.hw_plan import CardKind
from trainers.backends.local import HEAP_VARIABLE, _heap, _threads


def test_heap_is_tuned_for_processors_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(HEAP_VARIABLE, raising=False)
    assert "glibc.malloc.hugetlb=1" in _heap(CardKind.cpu)[HEAP_VARIABLE]
    assert _heap(CardKind.cuda) == {}


def test_heap_leaves_the_users_own_setting_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(HEAP_VARIABLE, "glibc.malloc.check=0")
    assert _heap(CardKind.cpu) == {}


def test_threads_are_set_as_torchrun_would_set_them_but_for_the_users_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert (_threads(1), _threads(2)) == ({}, {"OMP_NUM_THREADS": "1"})
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert _threads(2) == {}


def test_heap_is_accepted_without_a_word(monkeypatch: pytest.MonkeyPatch):
    """glibc complains on stderr about what it cannot read."""
    monkeypatch.delenv(HEAP_VARIABLE, raising=False)
    command = [sys.executable, "-S", "-c", "print(len(bytearray(10**8)))"]
    done = subprocess.run(command, env=_heap(CardKind.cpu), capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("100000000\n", "")
