"""Which NVIDIA cards does the driver show to this process, and how much of their memory is free? Asked through NVML.

pynvml is imported only where a driver is. Call names and their meaning: NVIDIA's NVML API reference; what
CUDA_VISIBLE_DEVICES accepts: CUDA C++ programming guide, environment variables.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from preflight.machine.gpu import Gpu
from preflight.units import MIB

# What torch cannot address of nvidia-smi's total: 350 to 610 MiB in public out-of-memory messages, cards of all sizes.
RESERVED_BYTES_WHEN_UNKNOWN = 600 * MIB
HOLDER_BYTES = 256 * MIB  # less than this held is a desktop or a context, and nobody is looked up
_DRIVER_FILES = ("/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia/version")


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
        from preflight.machine.smi import read_smi

        gpus = read_smi(visible)
        return gpus, None if gpus else "an NVIDIA driver is here but pynvml is not installed (pip install nvidia-ml-py)"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        # Windows and WSL reach this point without any NVIDIA card.
        missing = isinstance(error, pynvml.NVMLError_LibraryNotFound)
        return (), None if missing else f"the NVIDIA driver does not answer: {error}"
    try:
        system = _System(_string(pynvml.nvmlSystemGetDriverVersion()), _cuda(pynvml))
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        chosen = _visible(pynvml, list(_devices(pynvml, handles)), visible)
        return tuple(_gpu(pynvml, device, chosen, system) for device in chosen), None
    except pynvml.NVMLError as error:
        return (), f"the NVIDIA driver does not answer: {error}"
    finally:
        pynvml.nvmlShutdown()


class _System(NamedTuple):
    driver: str
    cuda: str | None


def _cuda(pynvml: Any) -> str | None:
    """12080 means 12.8."""
    number = _ask(pynvml, pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


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


def _gpu(pynvml: Any, device: _Device, chosen: list[_Device], system: _System) -> Gpu:
    index, handle, parent = device
    whole = handle if parent is None else parent
    total_bytes, free_bytes = _memory_bytes(pynvml, handle)
    capability = _ask(pynvml, pynvml.nvmlDeviceGetCudaComputeCapability, whole)
    ecc = _ask(pynvml, pynvml.nvmlDeviceGetEccMode, whole)
    heat = _ask(pynvml, pynvml.nvmlDeviceGetTemperature, whole, pynvml.NVML_TEMPERATURE_GPU)
    return Gpu(
        index=index,
        name=_string(pynvml.nvmlDeviceGetName(handle)),
        memory_total_bytes=total_bytes,
        memory_free_bytes=free_bytes,
        compute_capability=None if capability is None else capability[0] + capability[1] / 10,
        power_limit_watts=_watts(pynvml, pynvml.nvmlDeviceGetEnforcedPowerLimit, handle, parent),
        default_power_limit_watts=_watts(pynvml, pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle, parent),
        driver=system.driver,
        cuda=system.cuda,
        mig=parent is not None,
        holders=_holders(pynvml, handle) if total_bytes - free_bytes > HOLDER_BYTES else (),
        temperature_celsius=None if heat is None else float(heat),
        slowdowns=_slowdowns(pynvml, whole),
        ecc=None if ecc is None else bool(ecc[0]),
        n_nvlinks=_n_nvlinks(pynvml, whole) if len(chosen) > 1 else None,
        peers=tuple(_reads(pynvml, whole, other) for _, other, _ in chosen if other is not handle),
    )


def _watts(pynvml: Any, call: Any, handle: Any, parent: Any) -> float | None:
    """A slice has no power limit of its own."""
    milliwatts = None if parent is not None else _ask(pynvml, call, handle)
    return None if milliwatts is None else milliwatts / 1e3


def _slowdowns(pynvml: Any, handle: Any) -> tuple[str, ...]:
    """Heat and the power brake; the power cap alone is how cards normally run under load."""
    reasons = _ask(pynvml, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
    names = {
        pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "heat",
        pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "heat",
        pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power_brake",
    }
    return tuple(dict.fromkeys(name for bit, name in names.items() if reasons & bit))


def _n_nvlinks(pynvml: Any, handle: Any) -> int:
    """Cards without NVLink do not know the question."""
    n_active = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = _ask(pynvml, pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            break
        n_active += int(state == 1)
    return n_active


def _reads(pynvml: Any, handle: Any, other: Any) -> bool:
    """Peer to peer, as the driver allows it."""
    index = pynvml.NVML_P2P_CAPS_INDEX_READ
    index = index[0] if isinstance(index, tuple) else index  # nvidia-ml-py writes it with a stray comma
    return bool(_ask(pynvml, pynvml.nvmlDeviceGetP2PStatus, handle, other, index) == pynvml.NVML_P2P_STATUS_OK)


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
