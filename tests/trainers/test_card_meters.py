"""What a driver says, played by a small one: clocks, reasons, company, joules; and silence where it says nothing."""

# ruff: noqa: TID253 - torch is what is tested here
from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

from trainers.card_meters import CardState, EnergyMeter, card_state

HANDLE = object()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Answers to change; an exception is raised."""
    answers: dict[str, Any] = {
        "nvmlDeviceGetClockInfo": 1410, "nvmlDeviceGetMaxClockInfo": 1980, "nvmlDeviceGetTemperature": 83,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x20, "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetTotalEnergyConsumption": 5_000,
    }  # fmt: skip

    def answer(name: str) -> Any:
        if isinstance(answers[name], Exception):
            raise answers[name]
        return answers[name]

    for name in answers:
        monkeypatch.setattr(pynvml, name, lambda *_, name=name: answer(name))
    return answers


def processes(*pids: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid) for pid in pids]


def test_card_state_reads_clock_heat_reason_and_company(driver: dict[str, Any]):
    driver["nvmlDeviceGetComputeRunningProcesses"] = processes(os.getpid(), 4242)
    assert card_state(HANDLE) == CardState(
        clock_hertz=1.41e9, max_clock_hertz=1.98e9, temperature_celsius=83.0, reasons=("thermal slowdown",),
        n_other_processes=1,
    )  # fmt: skip


def test_card_state_tells_a_thermal_slowdown_once(driver: dict[str, Any]):
    driver["nvmlDeviceGetCurrentClocksThrottleReasons"] = 0x64
    assert card_state(HANDLE).reasons == ("thermal slowdown", "power cap")


def test_card_state_counts_others_where_process_numbers_are_the_hosts(driver: dict[str, Any]):
    driver["nvmlDeviceGetComputeRunningProcesses"] = processes(1_000_001, 1_000_002, 1_000_003)
    assert card_state(HANDLE).n_other_processes == 2
    driver["nvmlDeviceGetComputeRunningProcesses"] = []
    assert card_state(HANDLE).n_other_processes == 0


def test_card_state_leaves_out_what_the_card_does_not_say(driver: dict[str, Any]):
    for name in driver:
        driver[name] = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert card_state(HANDLE) == CardState()
    assert card_state(None) == CardState()


def test_energy_meter_counts_from_its_making(driver: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trainers.card_meters.nvml_handle", lambda _: HANDLE)
    meter = EnergyMeter(torch.device("cuda"))
    driver["nvmlDeviceGetTotalEnergyConsumption"] = 12_500
    assert meter.joules() == 7.5
    driver["nvmlDeviceGetTotalEnergyConsumption"] = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert meter.joules() is None
