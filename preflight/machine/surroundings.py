"""What is around the processors: shared memory, open files, ports, network, disks, and what torch was built with."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NCCL_PREFIXES = ("NCCL_", "GLOO_", "TORCH_NCCL_", "MASTER_", "CUDA_VISIBLE_DEVICES", "PYTORCH_")
DEFAULT_PORT = 29500  # torchrun's
PACKAGES = ("triton", "bitsandbytes", "safetensors", "pyarrow", "tokenizers")
NETWORK_FILE_SYSTEMS = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "lustre", "ceph", "beegfs", "gpfs")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """None: this system does not say."""

    shm_bytes: int | None  # all of /dev/shm
    n_open_files: int | None  # the soft limit
    interfaces: tuple[str, ...]  # network interfaces that are up, without loopback and bridges
    has_infiniband: bool | None
    port: int  # where ranks would meet
    port_is_free: bool
    disk: str | None  # of the runs: ssd | hdd | a network file system's name
    torch_cuda: str | None  # what torch was built with; None: without CUDA, or not known
    triton: str | None  # installed version
    bitsandbytes: str | None  # and this
    safetensors: str | None
    pyarrow: str | None
    tokenizers: str | None
    address_space_bytes: int | None  # that a process may map (ulimit -v); None: no limit
    environment: Mapping[str, str]  # variables that ranks inherit and that change how they talk


NOTHING_KNOWN = Surroundings(
    shm_bytes=None, n_open_files=None, interfaces=(), has_infiniband=None, port=DEFAULT_PORT, port_is_free=True,
    disk=None, torch_cuda=None, triton=None, bitsandbytes=None, safetensors=None, pyarrow=None, tokenizers=None,
    address_space_bytes=None, environment={},
)  # fmt: skip


def look_around(
    folder: Path, environment: Mapping[str, str], search_path: list[str], root: Path = Path("/")
) -> Surroundings:
    """Milliseconds; another root for recorded machines."""
    port = _port(environment)
    return Surroundings(
        shm_bytes=_shm_bytes(root / "dev/shm"),
        n_open_files=_n_open_files(),
        interfaces=interfaces(root),
        has_infiniband=bool(_names(root / "sys/class/infiniband")) if (root / "sys/class").is_dir() else None,
        port=port,
        port_is_free=_is_free(port),
        disk=disk_kind(folder, root),
        torch_cuda=torch_cuda(search_path),
        **package_versions(PACKAGES, search_path),
        address_space_bytes=address_space_bytes(),
        environment={name: value for name, value in environment.items() if name.startswith(NCCL_PREFIXES)},
    )


def interfaces(root: Path) -> tuple[str, ...]:
    """Those that could carry gradients to another machine."""
    names = [
        name for name in _names(root / "sys/class/net") if not re.match(r"(lo|docker|br-|veth|virbr|ifb|tun)", name)
    ]
    states = {name: _text(root / "sys/class/net" / name / "operstate").strip() for name in names}
    return tuple(sorted(name for name, state in states.items() if state in ("up", "unknown")))


def disk_kind(folder: Path, root: Path = Path("/")) -> str | None:
    """Of the volume that `folder` is on, by /proc/self/mountinfo and the block device's own word."""
    place = os.path.abspath(os.path.expanduser(folder))
    mounts = [line.split() for line in _text(root / "proc/self/mountinfo").splitlines()]
    inside = [mount for mount in mounts if len(mount) > 4 and _contains(_unescaped(mount[4]), place)]
    if not inside:
        return None
    mount = max(inside, key=lambda fields: len(fields[4]))
    file_system = mount[mount.index("-") + 1] if "-" in mount else ""
    if file_system in NETWORK_FILE_SYSTEMS:
        return file_system
    if "-" in mount and re.match(r"/dev/x?vd", mount[mount.index("-") + 2]):
        return None  # hypervisors call every disk rotational
    block = root / "sys/dev/block" / mount[2]
    for place_of_queue in (block / "queue/rotational", block / "../queue/rotational"):  # a partition's disk is above it
        told = _text(place_of_queue).strip()
        if told in ("0", "1"):
            return "hdd" if told == "1" else "ssd"
    return None


def torch_cuda(search_path: list[str]) -> str | None:
    """From torch/version.py, which every build writes; torch is not imported."""
    for entry in search_path:
        text = _text(Path(entry or ".") / "torch" / "version.py")
        if text:
            found = re.search(r"^cuda\b[^=]*=\s*'([\d.]+)'", text, re.MULTILINE)
            return found[1] if found else None
    return None


def package_version(name: str, search_path: list[str]) -> str | None:
    """From the name of its metadata folder."""
    return package_versions((name,), search_path)[name]


def package_versions(names: tuple[str, ...], search_path: list[str]) -> dict[str, str | None]:
    """Of several packages in one look; the first place that has one counts."""
    versions: dict[str, str | None] = dict.fromkeys(names)
    metadata = re.compile(f"({'|'.join(names)})" + r"-([^-]+)(?:\.dist-info|(?:-py[\d.]+)?\.egg-info)")
    for entry in search_path:
        for folder in _names(Path(entry or ".")):
            if (found := metadata.fullmatch(folder)) and versions[found[1]] is None:
                versions[found[1]] = found[2]
    return versions


def _port(environment: Mapping[str, str]) -> int:
    text = environment.get("MASTER_PORT", "")
    return int(text) if text.isdigit() and 0 < int(text) < 65536 else DEFAULT_PORT


def _is_free(port: int) -> bool:
    import socket  # few bills ask

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
    return True


def _shm_bytes(place: Path) -> int | None:
    try:
        told = os.statvfs(place)
    except (OSError, AttributeError):  # Windows has neither
        return None
    return told.f_frsize * told.f_blocks


def _n_open_files() -> int | None:
    return _soft_limit("RLIMIT_NOFILE")


def address_space_bytes() -> int | None:
    """Of each process."""
    return _soft_limit("RLIMIT_AS")


def _soft_limit(name: str) -> int | None:
    """None: no limit, or none that this system has."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft


def _contains(mount: str, place: str) -> bool:
    return place == mount or place.startswith(mount.rstrip("/") + "/")


def _unescaped(text: str) -> str:
    """The kernel writes spaces as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
