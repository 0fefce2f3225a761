"""Signals to real processes, also in the moments before anybody could have expected them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from trainers.signals import HANDLED
from trainers.stopping import EXIT_CODES

PREAMBLE = "import signal, sys, time; from trainers.signals import *; "


def start(program: str, **settings: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PREAMBLE + program], text=True, stdout=subprocess.PIPE, **settings)  # type: ignore[call-overload,no-any-return]


def test_every_handled_signal_has_an_exit_code():
    assert set(HANDLED) <= EXIT_CODES.keys()


@pytest.mark.parametrize("name", HANDLED)
def test_stop_request_takes_every_handled_signal(name: str):
    program = f"s = StopRequest(); s.install(); signal.raise_signal(signal.{name}); print(s.requested)"
    assert start(program).communicate(timeout=20)[0].strip() == name


def test_stop_request_leaves_the_hangup_to_nohup():
    program = (
        "signal.signal(signal.SIGHUP, signal.SIG_IGN); s = StopRequest(); s.install();"
        "signal.raise_signal(signal.SIGHUP); print(s.requested)"
    )
    assert start(program).communicate(timeout=20)[0].strip() == "None"


def test_signal_before_the_handlers_waits_for_them():
    child = (
        "import signal, sys; from trainers.signals import *; s = StopRequest();"
        "print('up', flush=True); sys.stdin.readline(); s.install(); print(s.requested)"
    )
    program = (
        "import subprocess\nwith held_back():\n"
        f"    p = subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "p.stdout.readline(); p.send_signal(signal.SIGINT); print(p.communicate(b'go\\n')[0].decode())"
    )
    assert start(program).communicate(timeout=20)[0].strip() == "SIGINT"


@pytest.mark.parametrize("variable", [None, "", "nobody"])
def test_stop_with_parent_needs_no_word_of_who_it_is(variable: str | None):
    environment = {name: value for name, value in os.environ.items() if name != "PREFLIGHT_PARENT_PID"}
    environment |= {} if variable is None else {"PREFLIGHT_PARENT_PID": variable}
    process = start("stop_with_parent(); print('alive')", env=environment)
    assert process.communicate(timeout=20)[0].strip() == "alive"


@pytest.mark.parametrize("module", ["trainers.worker", "trainers.backends.agent"])
def test_handlers_stand_before_anything_heavy_is_imported(module: str):
    program = f"import {module}; print(sorted({{'torch', 'argparse', 'json', 'preflight', 'conf'}} & set(sys.modules)))"
    assert start(program).communicate(timeout=20)[0].strip() == "[]"


def test_agent_ends_without_a_traceback_when_interrupted_during_its_imports(tmp_path: Path):
    agent = subprocess.Popen(
        [sys.executable, "-m", "trainers.backends.agent", str(tmp_path), "--standalone", "-m", "nothing"],
        env={k: v for k, v in os.environ.items() if k != "PREFLIGHT_PARENT_PID"}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    status = psutil.Process(agent.pid)
    while not any("libtorch" in region.path for region in status.memory_maps()):
        assert agent.poll() is None
    agent.send_signal(signal.SIGINT)
    assert agent.communicate(timeout=20)[1] == ""
    assert agent.returncode == 130
