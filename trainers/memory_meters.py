"""How many bytes did this rank need? Asked of allocator, device and process table; None where nobody knows."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

Number = int | None


def resident_bytes() -> int:
    """What this process occupies now (Linux: without starting psutil, which costs more than the answer)."""
    if sys.platform.startswith("linux"):
        return _linux_status_bytes("VmRSS")
    import psutil

    return int(psutil.Process().memory_info().rss)


def peak_resident_bytes() -> int:
    """The most it has occupied. Linux: VmHWM, since ru_maxrss also remembers the parent's pages of before exec."""
    if sys.platform.startswith("linux"):
        return _linux_status_bytes("VmHWM")
    import psutil

    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):  # Windows
        return int(memory.peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts bytes here


def _linux_status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {key}")


class MemoryMeter:
    """Peaks of one rank. `base_bytes` is what was in use before the model was built."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.zeros(1, device=device)  # the context comes with the first tensor
            torch.cuda.reset_peak_memory_stats(device)
        self.base_bytes = self._in_use_bytes()
        self._largest_seen = 0

    def look(self) -> None:
        """Cards keep no peak of their own total: note what is in use now. Caching allocators give little back."""
        if self.device.type != "cpu":
            self._largest_seen = max(self._largest_seen, self._in_use_bytes())

    def peaks(self) -> tuple[Number, Number, Number]:
        """Allocated, reserved, device."""
        self.look()
        if self.device.type == "cuda":
            allocated = torch.cuda.max_memory_allocated(self.device)
            return allocated, torch.cuda.max_memory_reserved(self.device), self._largest_seen
        if self.device.type == "mps":
            return None, None, self._largest_seen
        return None, None, peak_resident_bytes()

    def _in_use_bytes(self) -> int:
        if self.device.type == "cuda":  # others on the same card count too: they take room all the same
            free, total = torch.cuda.mem_get_info(self.device)
            return total - free
        if self.device.type == "mps":
            return torch.mps.driver_allocated_memory()
        return resident_bytes()
