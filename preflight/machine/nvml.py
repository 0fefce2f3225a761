"""Which NVIDIA cards does the driver show to this process, and how much of their memory is free? Asked through NVML.

pynvml is imported only where a driver is. Call names and their meaning: NVIDIA's NVML API reference; what
CUDA_VISIBLE_DEVICES accepts: CUDA C++ programming guide, environment variables.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preflight.units import MIB

# What torch cannot address of nvidia-smi's total: 350 to 610 MiB in public out-of-memory messages, cards of all sizes.
RESERVED_BYTES_WHEN_UNKNOWN = 600 * MIB
HOLDER_BYTES = 256 * MIB  # less than this held is a desktop or a context, and nobody is looked up
_DRIVER_FILES = ("/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia/version")


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


def driver_is_here() -> bool:
    """A cheap look for an NVIDIA driver, before anything is imported."""
    return sys.platform == "win32" or any(Path(file).exists() for file in _DRIVER_FILES)


def read_gpus(environment: Mapping[str, str]) -> tuple[tuple[Gpu, ...], str | None]:
    """The visible cards, and why the driver does not answer when it is there but silent."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return (), None
    try:
        import pynvml
    except ImportError:
        return (), "an NVIDIA driver is here but pynvml is not installed (pip install nvidia-ml-py)"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        # Windows and WSL reach this point without any NVIDIA card.
        missing = isinstance(error, pynvml.NVMLError_LibraryNotFound)
        return (), None if missing else f"the NVIDIA driver does not answer: {error}"
    try:
        driver = _string(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        chosen = _visible(pynvml, list(_devices(pynvml, handles)), visible)
        return tuple(_gpu(pynvml, index, handle, parent, driver) for index, handle, parent in chosen), None
    except pynvml.NVMLError as error:
        return (), f"the NVIDIA driver does not answer: {error}"
    finally:
        pynvml.nvmlShutdown()


_Device = tuple[int, Any, Any]  # nvidia-smi's index, handle, the whole card's handle when it is a slice


def _devices(pynvml: Any, handles: list[Any]) -> Iterator[_Device]:
    """Whole cards, or the MIG slices of those that are sliced."""
    for index, handle in enumerate(handles):
        slices = list(_slices(pynvml, handle))
        if slices:
            yield from ((index, piece, handle) for piece in slices)
        else:
            yield index, handle, None


def _slices(pynvml: Any, handle: Any) -> Iterator[Any]:
    mode = _ask(pynvml, pynvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return
    for i in range(_ask(pynvml, pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        piece = _ask(pynvml, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, i)
        if piece is not None:
            yield piece


def _visible(pynvml: Any, devices: list[_Device], visible: str | None) -> list[_Device]:
    """CUDA's own rules: numbers or UUID prefixes, cut at the first that fits nothing.

    A process gets one MIG slice, and no whole card beside it (NVIDIA MIG user guide, "CUDA device enumeration").
    """
    chosen = devices
    if visible is not None:
        chosen = []
        for entry in (part.strip() for part in visible.split(",")):
            found = next((device for device in devices if _is_called(pynvml, device, entry)), None)
            if found is None:
                break
            chosen.append(found)
    slices = [device for device in chosen if device[2] is not None]
    return slices[:1] or chosen


def _is_called(pynvml: Any, device: _Device, entry: str) -> bool:
    index, handle, _ = device
    if entry.isdigit():
        return index == int(entry)
    uuid = _ask(pynvml, pynvml.nvmlDeviceGetUUID, handle)
    return len(entry) > len("GPU-") and uuid is not None and _string(uuid).startswith(entry)


def _gpu(pynvml: Any, index: int, handle: Any, parent: Any, driver: str) -> Gpu:
    whole = handle if parent is None else parent
    total_bytes, free_bytes = _memory_bytes(pynvml, handle)
    capability = _ask(pynvml, pynvml.nvmlDeviceGetCudaComputeCapability, whole)
    # A slice has no power limit of its own.
    milliwatts = None if parent is not None else _ask(pynvml, pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return Gpu(
        index=index,
        name=_string(pynvml.nvmlDeviceGetName(handle)),
        memory_total_bytes=total_bytes,
        memory_free_bytes=free_bytes,
        compute_capability=None if capability is None else capability[0] + capability[1] / 10,
        power_limit_watts=None if milliwatts is None else milliwatts / 1e3,
        driver=driver,
        mig=parent is not None,
        holders=_holders(pynvml, handle) if total_bytes - free_bytes > HOLDER_BYTES else (),
    )


def _memory_bytes(pynvml: Any, handle: Any) -> tuple[int, int]:
    """Addressable and free. Version 2 of the call tells the driver's own part apart; drivers before 510 lack it."""
    exact = _ask(pynvml, pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    if exact is not None:
        return int(exact.total - exact.reserved), int(exact.free)
    coarse = pynvml.nvmlDeviceGetMemoryInfo(handle)
    total_bytes = int(coarse.total) - RESERVED_BYTES_WHEN_UNKNOWN
    return total_bytes, min(int(coarse.free), total_bytes)


def _holders(pynvml: Any, handle: Any) -> tuple[str, ...]:
    processes = _ask(pynvml, pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    return tuple(f"pid {process.pid}{_command(process.pid)}" for process in processes)


def _command(pid: int) -> str:
    """Its name in brackets; empty across containers, where the pid is another process space's."""
    try:
        return f" ({Path(f'/proc/{pid}/comm').read_text(encoding='utf-8').strip()})"
    except OSError:
        return ""


def _ask(pynvml: Any, call: Any, *arguments: Any) -> Any:
    """None when this card, driver or permission does not offer the answer."""
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None


def _string(text: str | bytes) -> str:
    """Older pynvml returns bytes."""
    return text.decode() if isinstance(text, bytes) else text
