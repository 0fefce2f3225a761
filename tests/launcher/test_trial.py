"""What works is asked once by versions, in a process of its own; what does not is done without."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import replace

import pytest

from launcher import trial
from preflight.machine.gpu import Gpu
from preflight.machine.snapshot import Machine
from preflight.machine.surroundings import NOTHING_KNOWN
from preflight.verdict.judge import Finding, Severity

WORKS = {"compile": "", "copies": ""}


def gpu(index=0):
    return Gpu(
        index=index, name="NVIDIA GeForce RTX 4090", memory_total_bytes=25 * 10**9, memory_free_bytes=25 * 10**9,
        compute_capability=8.9, power_limit_watts=450.0, driver="580.95.05",
    )  # fmt: skip


def machine(*gpus):
    return Machine(
        hostname="box", platform="linux", cpu_name="CPU", n_cpu_cores=2, cpu_flags=frozenset(), cpu_hertz=None,
        memory_total_bytes=1, memory_available_bytes=1, gpus=gpus, apple_gpu=None, disk_free_bytes=1, python="3.11.7",
        torch="2.13.0", world=None, wandb_key=False,
    )  # fmt: skip


@pytest.fixture
def asked(monkeypatch):
    """The trials that were held, with the answers that they give."""
    held, answers = [], dict(WORKS)

    def run(command, **options):
        name = command[-1]
        held.append((command[-2], name))
        if answers[name] == "hangs":
            return subprocess.CompletedProcess(command, -signal.SIGALRM, stdout="", stderr="")
        told = json.dumps({name: answers[name]})
        return subprocess.CompletedProcess(command, 0, stdout=f"noise\n{told}\n", stderr="")

    monkeypatch.setattr(trial.subprocess, "run", run)
    monkeypatch.delenv(trial.P2P_OFF, raising=False)
    return held, answers


def plan_in(make_plan, tmp_path, **fields):
    return make_plan(runs_dir=str(tmp_path / "runs"), **{"compile": True, **fields})


def test_tried_asks_once_by_versions(make_plan, tmp_path, asked):
    held, _ = asked
    plan, here = plan_in(make_plan, tmp_path), machine(gpu())
    assert trial.tried(plan, (), here) == (plan, ())
    assert trial.tried(plan, (), here) == (plan, ())
    assert held == [("cuda", "compile")]
    trial.tried(plan, (), replace(here, torch="2.14.0"))
    trial.tried(plan, (), replace(here, around=replace(NOTHING_KNOWN, triton="4.0")))
    assert len(held) == 3


def test_tried_goes_on_without_a_compiler_and_says_so(make_plan, tmp_path, asked):
    _, answers = asked
    answers["compile"] = "InductorError: no C++ compiler"
    plan, findings = trial.tried(plan_in(make_plan, tmp_path, card="cpu"), (), machine())
    assert plan.trainer.compile is False
    (finding,) = findings
    assert finding.severity is Severity.warning
    assert (
        "torch.compile does not work here: InductorError: no C++ compiler; the run goes on without" in finding.message
    )


def test_tried_sends_gradients_through_the_host_when_copies_hang(make_plan, tmp_path, asked, monkeypatch):
    # pairs of 4090s whose copies arrive as zeros or hang (tinygrad/open-gpu-kernel-modules#45)
    held, answers = asked
    monkeypatch.setattr(trial.os, "environ", dict(trial.os.environ))
    answers["copies"] = "hangs"
    plan = plan_in(make_plan, tmp_path, n_gpus=2, compile=False)
    same, findings = trial.tried(plan, (), machine(gpu(0), gpu(1)))
    assert same == plan
    assert trial.os.environ[trial.P2P_OFF] == "1"
    assert "they do not come to an end; NCCL_P2P_DISABLE=1 is set for the ranks" in findings[0].message
    assert held == [("cuda", "copies")]


def test_tried_asks_nothing_when_nothing_starts_or_nothing_is_in_doubt(make_plan, tmp_path, asked):
    held, _ = asked
    error = Finding(check="x", severity=Severity.error, message="", fix="", exit_code=4)
    trial.tried(plan_in(make_plan, tmp_path), (error,), machine(gpu()))
    trial.tried(plan_in(make_plan, tmp_path, compile=False), (), machine(gpu()))
    assert held == []
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("slow", [False, True])
def test_tried_changes_nothing_when_there_is_no_answer(make_plan, tmp_path, monkeypatch, slow):
    def fails(command, **options):
        return subprocess.CompletedProcess(command, 1, stdout="", stderr="No module named torch")

    def is_slow(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(trial.subprocess, "run", is_slow if slow else fails)
    plan = plan_in(make_plan, tmp_path)
    assert trial.tried(plan, (), machine(gpu())) == (plan, ())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("compiler", "answer"),
    [
        (lambda function: function, ""),
        (lambda function: lambda inputs: 2 * function(inputs), "the compiled step gives other numbers"),
        (None, "RuntimeError: Cannot find a working triton installation."),
    ],
)
def test_the_trial_itself_compares_with_the_same_without_a_compiler(monkeypatch, capsys, compiler, answer):
    import torch

    from trainers.trial import main

    def broken(function):
        raise RuntimeError("\nCannot find a working triton installation.\nmore at ...")

    monkeypatch.setattr(torch, "compile", compiler or broken)
    assert main(["cpu", "compile"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"compile": answer}
