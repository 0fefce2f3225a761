"""Processor and memory from recorded kernel texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.machine.host import (
    cpu_quota,
    memory_limit,
    n_physical_cores,
    parse_cpu_flags,
    parse_cpu_hertz,
    parse_cpu_name,
    parse_meminfo,
    read_linux,
    usable_cores,
)

GIB = 2**30

EPYC = """\
processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9354 32-Core Processor
cpu MHz\t\t: 2596.140
physical id\t: 0
siblings\t: 2
core id\t\t: 0
cpu cores\t: 2
flags\t\t: fpu sse2 avx avx2 avx512f avx512_bf16 avx512_vnni

processor\t: 1
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9354 32-Core Processor
cpu MHz\t\t: 3240.001
physical id\t: 0
siblings\t: 2
core id\t\t: 1
cpu cores\t: 2
flags\t\t: fpu sse2 avx avx2 avx512f avx512_bf16 avx512_vnni

"""

# Two cores with two threads each.
XEON = "\n".join(
    f"processor\t: {i}\nmodel name\t: Intel(R) Xeon(R)  Platinum 8275CL CPU @ 3.00GHz\n"
    f"physical id\t: 0\ncore id\t\t: {i % 2}\nflags\t\t: avx2 avx512f\n"
    for i in range(4)
)

GRAVITON = """\
processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd evtstrm aes sha1 sha2 crc32 atomics fphp asimdhp sve bf16 i8mm
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1

processor\t: 1
BogoMIPS\t: 2100.00
Features\t: fp asimd evtstrm bf16
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""

MEMINFO = """\
MemTotal:       24684084 kB
MemFree:        24393064 kB
MemAvailable:   24334088 kB
Buffers:            1736 kB
HugePages_Total:       0
"""


def test_cpu_facts_of_a_server():
    assert parse_cpu_name(EPYC) == "AMD EPYC 9354 32-Core Processor"
    assert parse_cpu_flags(EPYC) == {"avx2", "avx512f", "avx512_bf16"}
    assert parse_cpu_hertz(EPYC) == 3240.001e6


def test_cpu_hertz_from_the_name_when_the_clock_is_hidden():
    assert parse_cpu_name(XEON) == "Intel(R) Xeon(R) Platinum 8275CL CPU @ 3.00GHz"
    assert parse_cpu_hertz(XEON) == 3.0e9


def test_cpu_facts_of_an_arm_server():
    assert parse_cpu_name(GRAVITON) == "ARM implementer 0x41 part 0xd40"
    assert parse_cpu_flags(GRAVITON) == {"neon", "bf16"}
    assert parse_cpu_hertz(GRAVITON) is None


def test_cpu_facts_of_an_empty_text_are_unknown():
    assert parse_cpu_name("") == "unknown processor"
    assert parse_cpu_flags("") == frozenset()
    assert parse_cpu_hertz("") is None


def test_two_threads_of_one_core_count_once():
    assert n_physical_cores(XEON, frozenset({0, 1, 2, 3})) == 2
    assert n_physical_cores(XEON, frozenset({0, 2})) == 1  # both on core 0
    assert n_physical_cores(EPYC, frozenset({0, 1})) == 2
    assert n_physical_cores(GRAVITON, frozenset({0, 1})) == 2  # no core id: every processor is one
    assert n_physical_cores("", frozenset({0, 1, 2})) == 3


@pytest.mark.parametrize(("n_cores", "quota", "usable"), [(8, None, 8), (8, 2.5, 2), (2, 16.0, 2), (8, 0.5, 1)])
def test_usable_cores_are_whole_and_at_least_one(n_cores: int, quota: float | None, usable: int):
    assert usable_cores(n_cores, quota) == usable


def test_meminfo_counts_in_kib():
    memory = parse_meminfo(MEMINFO)
    assert memory["MemTotal"] == 24684084 * 1024
    assert memory["MemAvailable"] == 24334088 * 1024
    assert "HugePages_Total" not in memory  # a count, not bytes


def test_cpu_quota_of_both_versions():
    assert cpu_quota([{"cpu.max": "150000 100000"}]) == 1.5
    assert cpu_quota([{"cpu.max": "max 100000"}]) is None
    assert cpu_quota([{"cpu.cfs_quota_us": "400000", "cpu.cfs_period_us": "100000"}]) == 4.0
    assert cpu_quota([{"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}]) is None
    assert cpu_quota([{"cpu.max": "800000 100000"}, {"cpu.max": "200000 100000"}]) == 2.0
    assert cpu_quota([]) is None


def test_memory_limit_counts_file_cache_as_room():
    files = {
        "memory.max": str(8 * GIB),
        "memory.current": str(6 * GIB),
        "memory.stat": f"anon {3 * GIB}\ninactive_file {2 * GIB}\nactive_file 5",
    }
    assert memory_limit([files]) == (8 * GIB, 4 * GIB)  # 8 - 6 + 2


def test_memory_limit_of_version_1_and_none():
    files = {"memory.limit_in_bytes": str(4 * GIB), "memory.usage_in_bytes": str(GIB), "memory.stat": ""}
    assert memory_limit([files]) == (4 * GIB, 3 * GIB)
    unlimited = {"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "5"}
    assert memory_limit([unlimited])[0] > 2**50
    assert memory_limit([{"memory.max": "max"}])[0] > 2**50


def _recorded(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    texts = {"proc/cpuinfo": EPYC, "proc/meminfo": MEMINFO, "proc/self/cgroup": cgroup, **files}
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_read_linux_without_limits(tmp_path: Path):
    host = read_linux(_recorded(tmp_path, "0::/user.slice\n", {}))
    assert host.memory_total_bytes == 24684084 * 1024
    assert host.memory_available_bytes == 24334088 * 1024
    assert host.cpu_name == "AMD EPYC 9354 32-Core Processor"


def test_read_linux_inside_a_version_2_container(tmp_path: Path):
    files = {"sys/fs/cgroup/memory.max": f"{4 * GIB}\n", "sys/fs/cgroup/memory.current": f"{GIB}\n"}
    files["sys/fs/cgroup/cpu.max"] = "100000 100000\n"
    # The path is the host's and does not exist in here: the limits stand at the mount's root.
    host = read_linux(_recorded(tmp_path, "0::/system.slice/docker-abc.scope\n", files))
    assert (host.memory_total_bytes, host.memory_available_bytes) == (4 * GIB, 3 * GIB)
    assert host.n_cpu_cores == 1


def test_read_linux_counts_the_limit_of_a_parent_group(tmp_path: Path):
    files = {
        "sys/fs/cgroup/slurm/memory.max": str(2 * GIB),
        "sys/fs/cgroup/slurm/memory.current": "0",
        "sys/fs/cgroup/slurm/step_0/memory.max": "max",
    }
    assert read_linux(_recorded(tmp_path, "0::/slurm/step_0\n", files)).memory_total_bytes == 2 * GIB


def test_read_linux_with_version_1_groups(tmp_path: Path):
    cgroup = "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n"
    files = {
        "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": str(3 * GIB),
        "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": str(GIB),
        "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "100000",
        "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
    }
    host = read_linux(_recorded(tmp_path, cgroup, files))
    assert (host.memory_total_bytes, host.memory_available_bytes) == (3 * GIB, 2 * GIB)
    assert host.n_cpu_cores == 1


def test_read_linux_prefers_the_processors_top_clock(tmp_path: Path):
    files = {"sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3800000\n"}
    assert read_linux(_recorded(tmp_path, "", files)).cpu_hertz == 3.8e9
