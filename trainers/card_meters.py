"""What does the card's driver say while it trains: joules, clock, temperature, who else is on it? NVML; None: unknown.

Clock event reasons: NVIDIA NVML API reference, nvmlClocksEventReasons.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

THERMAL_REASONS = {
    0x08: "hardware slowdown", 0x20: "thermal slowdown", 0x40: "thermal slowdown", 0x80: "power brake",
    0x04: "power cap",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CardState:
    """At one moment."""

    clock_hertz: float | None = None  # of the multiprocessors
    max_clock_hertz: float | None = None
    temperature_celsius: float | None = None
    reasons: tuple[str, ...] = ()  # why the clock is not higher
    n_other_processes: int | None = None  # computing on the same card


def nvml_handle(device: torch.device) -> Any:
    """By UUID, since CUDA_VISIBLE_DEVICES renumbers cards and NVML does not follow."""
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except pynvml.NVMLError:  # no NVML in this container, or a MIG slice
        return None


class EnergyMeter:
    """The card's own counter of joules (NVML, Volta and newer). Elsewhere None: watts x hours is no measurement."""

    def __init__(self, device: torch.device) -> None:
        self.handle = nvml_handle(device)
        self._start = self._millijoules()

    def joules(self) -> float | None:
        """Since this meter was made."""
        now = self._millijoules()
        return None if now is None or self._start is None else (now - self._start) / 1e3

    def _millijoules(self) -> int | None:
        if self.handle is None:
            return None
        import pynvml

        joules = _ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, self.handle)
        return None if joules is None else int(joules)  # older than Volta, or a MIG slice: no counter


def card_state(handle: Any) -> CardState:
    """Empty without a driver that answers."""
    if handle is None:
        return CardState()
    import pynvml

    clock = _ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM)
    limit = _ask(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM)
    mask = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
    processes = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    degrees = _ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
    return CardState(
        clock_hertz=None if clock is None else clock * 1e6,
        max_clock_hertz=None if limit is None else limit * 1e6,
        temperature_celsius=None if degrees is None else float(degrees),
        reasons=tuple(dict.fromkeys(name for bit, name in THERMAL_REASONS.items() if mask & bit)),
        n_other_processes=None if processes is None else _others([process.pid for process in processes]),
    )


def _others(pids: list[int]) -> int:
    """In a container the driver's process numbers are the host's: then one of them is taken to be ours."""
    return len([pid for pid in pids if pid != os.getpid()]) if os.getpid() in pids else max(0, len(pids) - 1)


def _ask(call: Any, *arguments: Any) -> Any:
    """None when this card, driver or permission does not offer the answer."""
    import pynvml

    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None
