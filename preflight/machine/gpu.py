"""One card as the driver reports it, whichever way it was asked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card as the driver reports it. None: the driver does not say."""

    index: int  # as nvidia-smi numbers it
    name: str  # "NVIDIA GeForce RTX 4090"
    memory_total_bytes: int  # what a process can address: the driver's own part is taken off
    memory_free_bytes: int
    compute_capability: float | None
    power_limit_watts: float | None
    driver: str
    mig: bool = False  # a slice of a card
    holders: tuple[str, ...] = ()  # who holds memory: "pid 4242 (python)"
    default_power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    slowdowns: tuple[str, ...] = ()  # what holds its clocks down now: heat, power_brake
    ecc: bool | None = None  # switched on
    cuda: str | None = None  # the newest CUDA that the driver runs: "12.8"
    n_nvlinks: int | None = None  # active ones
    peers: tuple[bool, ...] = ()  # whether it reads the memory of each other visible card over PCIe or NVLink
