"""What this computer is: processors, memory, cards, disk, torchrun's environment. Torch is never imported here."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from preflight.machine.gpu import Gpu
from preflight.machine.host import Host, read_linux
from preflight.machine.nvml import driver_is_here, read_gpus
from preflight.machine.surroundings import NOTHING_KNOWN, Surroundings, look_around, package_version

__all__ = ["Gpu", "Machine", "World", "probe"]

SUBPROCESS_SECONDS = 2.0  # macOS only; sysctl answers in milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """torchrun's environment, when it is in charge."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A snapshot; everything downstream judges this value and looks at nothing else."""

    hostname: str
    platform: str  # linux | darwin | windows | wsl
    cpu_name: str
    n_cpu_cores: int  # that this process may use (affinity and cgroup quota)
    cpu_flags: frozenset[str]  # of avx2 avx512f avx512_bf16 amx_bf16 neon bf16
    cpu_hertz: float | None
    memory_total_bytes: int  # cgroup limit counted
    memory_available_bytes: int
    gpus: tuple[Gpu, ...]  # visible ones (CUDA_VISIBLE_DEVICES counted)
    apple_gpu: str | None  # "Apple M2" where MPS is
    disk_free_bytes: int  # on the volume of runs_dir
    python: str
    torch: str | None  # from package metadata
    world: World | None
    wandb_key: bool  # an API key is configured
    gpu_trouble: str | None = None  # why a driver that is here does not answer
    around: Surroundings = NOTHING_KNOWN


def probe(runs_dir: Path) -> Machine:
    """Look once. Bounded: no call here waits on the network."""
    environment = os.environ
    platform = _platform()
    host, apple_gpu = _host(platform)
    gpus, trouble = read_gpus(environment) if driver_is_here() else ((), None)
    return Machine(
        hostname=_hostname(),
        platform=platform,
        cpu_name=host.cpu_name,
        n_cpu_cores=host.n_cpu_cores,
        cpu_flags=host.cpu_flags,
        cpu_hertz=host.cpu_hertz,
        memory_total_bytes=host.memory_total_bytes,
        memory_available_bytes=host.memory_available_bytes,
        gpus=gpus,
        apple_gpu=apple_gpu,
        disk_free_bytes=disk_free_bytes(runs_dir),
        python=".".join(map(str, sys.version_info[:3])),
        torch=torch_version(sys.path),
        world=read_world(environment),
        wandb_key=has_wandb_key(environment, Path(os.path.expanduser("~"))),  # stays "~" for a user without a home
        gpu_trouble=trouble,
        around=look_around(runs_dir, environment, sys.path),
    )


def read_world(environment: Mapping[str, str]) -> World | None:
    """torchrun sets all four for every rank; fewer come from other programs and mean nothing here."""
    texts = [environment.get(name, "") for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")]
    if not all(text.isdigit() for text in texts):
        return None
    rank, local_rank, world_size, local_world_size = map(int, texts)
    return World(rank=rank, local_rank=local_rank, world_size=world_size, local_world_size=local_world_size)


def torch_version(search_path: list[str]) -> str | None:
    """From the name of torch's metadata folder: importlib.metadata costs as much as the rest of the probe."""
    return package_version("torch", search_path)


def disk_free_bytes(folder: Path) -> int:
    """On the volume where `folder` is or will be made."""
    import shutil

    return shutil.disk_usage(existing_part(folder)).free


def existing_part(place: str | Path) -> str:
    """Of what will be made."""
    existing = os.path.abspath(os.path.expanduser(place))
    while not os.path.exists(existing):  # Path.exists raises where a parent may not be read
        existing = os.path.dirname(existing)
    return existing


def is_open(place: str | Path) -> bool:
    """A folder in which files can be made, or one that can be made."""
    existing = existing_part(place)
    return os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK) and not is_of_the_kernel(existing)


def is_of_the_kernel(existing: str) -> bool:
    """/proc and /sys have no blocks to keep files in: root may write there, and still makes nothing."""
    return hasattr(os, "statvfs") and os.statvfs(existing).f_blocks == 0


def has_wandb_key(environment: Mapping[str, str], home: Path) -> bool:
    """In the environment, or in ~/.netrc for the server that W&B's settings name."""
    if environment.get("WANDB_API_KEY", "").strip():
        return True
    url = environment.get("WANDB_BASE_URL") or _wandb_base_url(environment, home)
    host = url.split("//", 1)[-1].split("/", 1)[0]
    candidates = [Path(environment["NETRC"])] if environment.get("NETRC") else [home / ".netrc", home / "_netrc"]
    words = " ".join(_text(file) for file in candidates).split()
    return any(first == "machine" and second == host for first, second in pairwise(words))


def _wandb_base_url(environment: Mapping[str, str], home: Path) -> str:
    folder = Path(environment.get("WANDB_CONFIG_DIR") or home / ".config/wandb")
    found = re.search(r"^base_url\s*=\s*(\S+)", _text(folder / "settings"), re.MULTILINE)
    return found[1] if found else "https://api.wandb.ai"


def _platform() -> str:
    if sys.platform == "linux":
        return "wsl" if "microsoft" in _text(Path("/proc/sys/kernel/osrelease")).lower() else "linux"
    return "windows" if sys.platform == "win32" else sys.platform


def _hostname() -> str:
    import socket

    return socket.gethostname()


def _host(platform: str) -> tuple[Host, str | None]:
    if platform in ("linux", "wsl"):
        return read_linux(), None
    return _read_darwin() if platform == "darwin" else (_read_other(), None)


def _read_darwin() -> tuple[Host, str | None]:
    """Apple's GPU carries the chip's name and shares its memory."""
    import subprocess

    keys = ("machdep.cpu.brand_string", "hw.memsize", "hw.physicalcpu", "hw.optional.arm.FEAT_BF16")
    answer = subprocess.run(["sysctl", *keys], capture_output=True, text=True, timeout=SUBPROCESS_SECONDS, check=False)
    return parse_sysctl(answer.stdout, _available_bytes())


def parse_sysctl(text: str, available_bytes: int) -> tuple[Host, str | None]:
    """`sysctl` prints `key: value` lines and leaves out what the machine does not know."""
    facts = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    name = facts.get("machdep.cpu.brand_string", "unknown processor")
    is_apple = name.startswith("Apple")
    flags = {"neon"} if is_apple else set()
    if facts.get("hw.optional.arm.FEAT_BF16") == "1":
        flags.add("bf16")
    host = Host(
        cpu_name=name,
        cpu_flags=frozenset(flags),
        cpu_hertz=None,
        n_cpu_cores=int(facts.get("hw.physicalcpu", os.cpu_count() or 1)),
        memory_total_bytes=int(facts.get("hw.memsize", available_bytes)),
        memory_available_bytes=available_bytes,
    )
    return host, name if is_apple else None


def _read_other() -> Host:
    """Windows and the rest: what psutil knows."""
    import platform

    import psutil  # 20 ms: not where /proc answers

    clock = psutil.cpu_freq()
    return Host(
        cpu_name=platform.processor() or "unknown processor",
        cpu_flags=frozenset(),
        cpu_hertz=clock.max * 1e6 if clock and clock.max else None,
        n_cpu_cores=psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        memory_total_bytes=psutil.virtual_memory().total,
        memory_available_bytes=_available_bytes(),
    )


def _available_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def _text(path: Path) -> str:
    """Empty when there is no such file, or it is not ours to read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
