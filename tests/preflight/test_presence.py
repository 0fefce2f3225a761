"""A rank's lock dies with it, its file does not: that is how a death without a word is noticed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from preflight import presence

BE_A_RANK = """
import sys, time
from pathlib import Path
from preflight.presence import present
with present(Path(sys.argv[1]), 3):
    print("in", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def rank(tmp_path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", BE_A_RANK, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    return process


def test_rank_that_lives_is_alive_and_one_that_leaves_is_nowhere(tmp_path: Path, rank: subprocess.Popen[str]):
    assert presence.alive(tmp_path) == {3: rank.pid}
    assert presence.gone(tmp_path) == []
    assert presence.wait_until_all_are_gone(tmp_path, 0.0) == {3: rank.pid}
    rank.communicate("go\n", timeout=20)
    assert (presence.alive(tmp_path), presence.gone(tmp_path)) == ({}, [])


def test_rank_that_is_killed_is_gone_without_a_word(tmp_path: Path, rank: subprocess.Popen[str]):
    presence.kill_all(tmp_path)
    rank.communicate(timeout=20)
    assert rank.returncode == -signal.SIGKILL
    assert (presence.alive(tmp_path), presence.gone(tmp_path)) == ({}, [3])
    presence.forget(tmp_path)
    assert presence.gone(tmp_path) == []


def test_presence_needs_no_folder(tmp_path: Path):
    with presence.present(tmp_path / "on another node", 0):
        assert presence.alive(tmp_path / "on another node") == {}
