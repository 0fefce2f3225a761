"""What the kernel says about processor and memory, limits of containers counted. Texts are parsed by pure functions.

Sources: proc(5), the kernel's cgroup-v1 and cgroup-v2 documentation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from preflight.units import KIB

# Kernel's word -> ours: what decides matmul speed on a CPU.
_FLAGS = {
    "avx2": "avx2",
    "avx512f": "avx512f",
    "avx512_bf16": "avx512_bf16",
    "amx_bf16": "amx_bf16",
    "asimd": "neon",
    "bf16": "bf16",
}
_NO_LIMIT_BYTES = 2**60  # cgroup v1 writes "no limit" as a huge page-aligned number


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Processor and memory of this computer, as this process may use them."""

    cpu_name: str
    cpu_flags: frozenset[str]
    cpu_hertz: float | None
    n_cpu_cores: int
    memory_total_bytes: int
    memory_available_bytes: int


def read_linux(root: Path = Path("/")) -> Host:
    """From /proc and /sys under `root` (another root for recorded machines)."""
    cpuinfo = _text(root / "proc/cpuinfo")
    meminfo = parse_meminfo(_text(root / "proc/meminfo"))
    groups = list(_control_groups(root, _text(root / "proc/self/cgroup")))
    limit_bytes, free_in_group_bytes = memory_limit(groups)
    total_bytes = meminfo["MemTotal"]
    available_bytes = meminfo.get("MemAvailable", meminfo.get("MemFree", total_bytes))
    return Host(
        cpu_name=parse_cpu_name(cpuinfo),
        cpu_flags=parse_cpu_flags(cpuinfo),
        cpu_hertz=_max_hertz(root) or parse_cpu_hertz(cpuinfo),
        n_cpu_cores=usable_cores(n_physical_cores(cpuinfo, _affinity(cpuinfo)), cpu_quota(groups)),
        memory_total_bytes=min(total_bytes, limit_bytes),
        memory_available_bytes=max(0, min(available_bytes, free_in_group_bytes)),
    )


def parse_meminfo(text: str) -> dict[str, int]:
    """Bytes by name; /proc/meminfo counts in KiB and writes kB."""
    return {name: int(n) * KIB for name, n in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}


def parse_cpu_name(text: str) -> str:
    """The model's name; ARM kernels give numbers only."""
    found = re.search(r"^(?:model name|Model|cpu model|Hardware)\s*:\s*(.+?)\s*$", text, re.MULTILINE)
    if found:
        return re.sub(r"\s+", " ", found[1])
    arm = re.search(r"^CPU implementer\s*:\s*(\w+)[\s\S]*?^CPU part\s*:\s*(\w+)", text, re.MULTILINE)
    return f"ARM implementer {arm[1]} part {arm[2]}" if arm else "unknown processor"


def parse_cpu_flags(text: str) -> frozenset[str]:
    """Of the first processor: avx2 avx512f avx512_bf16 amx_bf16 neon bf16, those it has."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    words = found[1].split() if found else ()
    return frozenset(_FLAGS[word] for word in words if word in _FLAGS)


def parse_cpu_hertz(text: str) -> float | None:
    """The fastest clock shown now, or the one in the name (`@ 2.50GHz`)."""
    clocks = [float(mhz) * 1e6 for mhz in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", text, re.MULTILINE)]
    in_name = re.search(r"@ ([\d.]+)\s*GHz", text)
    return max(clocks, default=float(in_name[1]) * 1e9 if in_name else None)


def n_physical_cores(cpuinfo: str, allowed: frozenset[int]) -> int:
    """Cores behind the processors this process may run on: two threads of one core share its arithmetic units."""
    cores: set[tuple[str, ...]] = set()
    for block in re.split(r"\n\s*\n", cpuinfo):
        fields = dict(re.findall(r"^([\w ]+?)\s*:\s*(\S+)", block, re.MULTILINE))
        number = fields.get("processor", "")
        if number.isdigit() and int(number) in allowed:
            core = (fields.get("physical id", ""), fields.get("core id", ""))
            cores.add(core if "core id" in fields else (number,))
    return len(cores) or len(allowed)


def usable_cores(n_cores: int, quota: float | None) -> int:
    """Whole cores under a CPU quota; at least one."""
    return max(1, n_cores if quota is None else min(n_cores, int(quota)))


def cpu_quota(groups: Iterable[Mapping[str, str]]) -> float | None:
    """The tightest quota of the groups, in processors; None without one."""
    quotas = []
    for files in groups:
        quota, period = files.get("cpu.cfs_quota_us", "-1"), files.get("cpu.cfs_period_us", "100000")
        if "cpu.max" in files:
            quota, period = [*files["cpu.max"].split(), "100000"][:2]
        if quota.isdigit() and period.isdigit() and int(period) > 0:  # "max" and "-1": none
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit(groups: Iterable[Mapping[str, str]]) -> tuple[int, int]:
    """The tightest limit of the groups, and the least room left in any; file cache can be given back, so it is room."""
    limits, rooms = [_NO_LIMIT_BYTES], [_NO_LIMIT_BYTES]
    for files in groups:
        limit = files.get("memory.max", files.get("memory.limit_in_bytes", "max"))
        used = files.get("memory.current", files.get("memory.usage_in_bytes", "0"))
        if not limit.isdigit() or int(limit) >= _NO_LIMIT_BYTES:
            continue
        cache = re.search(r"^(?:total_)?inactive_file (\d+)$", files.get("memory.stat", ""), re.MULTILINE)
        limits.append(int(limit))
        rooms.append(int(limit) - int(used) + (int(cache[1]) if cache else 0))
    return min(limits), min(rooms)


_CPU_FILES = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
_MEMORY_FILES = (
    "memory.max",
    "memory.current",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.stat",
)


def _control_groups(root: Path, cgroup: str) -> Iterator[dict[str, str]]:
    """The control files of every group this process is in, up to the root: a parent's limit holds too.

    Inside a container the path may be the host's and not exist here; its own limits then stand at the mount's root.
    """
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        parts = path.strip("/").split("/")
        for mount, wanted in _mounts(controllers):
            for depth in range(len(parts), -1, -1):
                folder = (root / "sys/fs/cgroup" / mount).joinpath(*parts[:depth])
                texts = {name: _text(folder / name).strip() for name in wanted} if folder.is_dir() else {}
                yield {name: text for name, text in texts.items() if text}


def _mounts(controllers: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Where a hierarchy is mounted below /sys/fs/cgroup, and which of its files count. Version 2 has no controllers."""
    names = controllers.split(",")
    if controllers == "":
        yield "", _CPU_FILES + _MEMORY_FILES
    if "cpu" in names:
        yield controllers, _CPU_FILES
    if "memory" in names:
        yield "memory", _MEMORY_FILES


def _affinity(cpuinfo: str) -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(len(re.findall(r"^processor\s*:", cpuinfo, re.MULTILINE)) or 1))


def _max_hertz(root: Path) -> float | None:
    text = _text(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").strip()
    return float(text) * 1e3 if text.isdigit() else None


def _text(path: Path) -> str:
    """Empty when the kernel does not offer the file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
