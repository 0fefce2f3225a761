"""What does an out-of-memory message say? PyTorch's words for CUDA and ROCm (old and new), CPU and Apple's MPS.

The texts are those of c10/cuda/CUDACachingAllocator.cpp (until 2.0: "already allocated", "reserved in total"; since
then "has a total capacity of"), c10/core/impl/alloc_cpu.cpp and aten/src/ATen/mps/MPSAllocator.mm. MPS prints GB and
means GiB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from preflight.units import GIB, KIB, MIB

UNITS = {"bytes": 1, "B": 1, "KiB": KIB, "KB": KIB, "MiB": MIB, "MB": MIB, "GiB": GIB, "GB": GIB}
SIZE = r"(\d+(?:\.\d+)?) (GiB|MiB|KiB|GB|MB|KB|bytes|B)\b"
SMALLEST_WORD = 0.005  # sizes are printed with two decimals


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """Bytes, as far as the message has them; None: it does not say."""

    requested_bytes: int
    precision_bytes: float  # half of the last printed digit
    device: str  # cuda | hip | mps | cpu
    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None  # living tensors of this process
    unallocated_bytes: int | None = None  # reserved by PyTorch and empty
    process_bytes: int | None = None  # all that this process holds on the device
    others_bytes: int | None = None  # held by other processes


def read_message(text: str) -> OutOfMemory | None:
    """The last message in a text, which may be a whole log; None: there is none."""
    starts = [
        match.start() for match in re.finditer(r"\b(?:CUDA|HIP|MPS backend) out of memory|DefaultCPUAllocator", text)
    ]
    return _read_one(text[starts[-1] :]) if starts else None


def _read_one(text: str) -> OutOfMemory | None:
    text = " ".join(text.split())  # logs break lines anywhere
    if text.startswith("DefaultCPUAllocator"):
        found = re.search(r"you tried to allocate (\d+) bytes", text)
        return OutOfMemory(requested_bytes=int(found[1]), precision_bytes=0.0, device="cpu") if found else None
    found = re.search(rf"[Tt]ried to allocate {SIZE}", text)
    if found is None:
        return None
    total = _size(rf"total capacity of {SIZE}", text) or _size(rf"{SIZE} total capacity", text)
    total = total or _size(rf"max allowed: {SIZE}", text)
    allocated = _size(rf"{SIZE} is allocated by PyTorch", text) or _size(rf"{SIZE} already allocated", text)
    allocated = allocated or _size(rf"MPS allocated: {SIZE}", text)
    reserved = _size(rf"{SIZE} (?:reserved in total|cached)", text)
    unallocated = _size(rf"{SIZE} is reserved by PyTorch but unallocated", text)
    if unallocated is None and reserved is not None and allocated is not None and reserved >= allocated:
        unallocated = reserved - allocated
    free = _size(rf"of which {SIZE} is free", text) or _size(rf"{SIZE} free", text)
    process = _size(rf"this process has {SIZE} memory in use", text)
    held = [_bytes(match[1], match[2]) for match in re.finditer(rf"Process \d+ has {SIZE} memory in use", text)]
    others = sum(held) if held else _rest(total, free, process)
    return OutOfMemory(
        requested_bytes=_bytes(found[1], found[2]),
        precision_bytes=SMALLEST_WORD * UNITS[found[2]],
        device={"C": "cuda", "H": "hip", "M": "mps"}[text[0]],
        total_bytes=total,
        free_bytes=free,
        allocated_bytes=allocated,
        unallocated_bytes=unallocated,
        process_bytes=process,
        others_bytes=others or _size(rf"other allocations: {SIZE}", text),
    )


def _rest(total: int | None, free: int | None, process: int | None) -> int | None:
    return max(0, total - free - process) if None not in (total, free, process) else None  # type: ignore[operator]


def _size(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return _bytes(found[1], found[2]) if found else None


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * UNITS[unit])
