"""Files of /proc and /sys as kernels write them, under another root."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from preflight.machine.surroundings import disk_kind, interfaces, look_around, package_version, torch_cuda

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 0 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
60 27 8:1 / /mnt/big\\040disk rw,relatime shared:30 - ext4 /dev/sda1 rw
61 27 0:52 / /home/me/nas rw,relatime shared:31 - nfs4 nas:/export rw
62 27 252:0 / /virtual rw,relatime shared:32 - ext4 /dev/vda rw
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {
        "proc/self/mountinfo": MOUNTS,
        "sys/class/net/eth0/operstate": "up\n",
        "sys/class/net/ib0/operstate": "down\n",
        "sys/class/net/enp4s0/operstate": "unknown\n",
        "sys/class/net/docker0/operstate": "up\n",
        "sys/class/net/lo/operstate": "unknown\n",
        "sys/class/infiniband/mlx5_0/node_type": "1: CA\n",
        "sys/dev/block/259:2/queue/rotational": "0\n",
        "sys/dev/block/8:1/queue/rotational": "1\n",
        "sys/dev/block/252:0/queue/rotational": "1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/me/runs", "ssd"),
        ("/mnt/big disk/runs", "hdd"),
        ("/home/me/nas/data", "nfs4"),
        ("/home/me/nasty", "ssd"),  # not below the mount
        ("/virtual/runs", None),  # hypervisors call every disk rotational
        ("/proc/x", None),
    ],
)
def test_disk_kind_follows_the_deepest_mount(root: Path, folder: str, kind: str | None):
    assert disk_kind(Path(folder), root) == kind


def test_interfaces_are_those_that_reach_other_machines(root: Path):
    assert interfaces(root) == ("enp4s0", "eth0")


def test_look_around_keeps_what_ranks_inherit(root: Path):
    environment = {"NCCL_SOCKET_IFNAME": "eth0", "HOME": "/root", "MASTER_PORT": "no"}
    around = look_around(Path("/runs"), environment, [], root)
    assert around.environment == {"NCCL_SOCKET_IFNAME": "eth0", "MASTER_PORT": "no"}
    assert (around.has_infiniband, around.port) == (True, 29500)


def test_look_around_tells_a_port_that_is_taken(root: Path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not look_around(Path("/runs"), {"MASTER_PORT": str(port)}, [], root).port_is_free


def test_torch_cuda_is_read_from_the_file_that_every_build_writes(tmp_path: Path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text(
        "__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\nhip = None\n"
    )
    assert torch_cuda(["/nowhere", str(tmp_path)]) == "13.0"
    (tmp_path / "torch/version.py").write_text("cuda: Optional[str] = None\n")
    assert torch_cuda([str(tmp_path)]) is None


def test_package_version_is_that_of_the_metadata_folder(tmp_path: Path):
    (tmp_path / "triton-3.6.0.dist-info").mkdir()
    (tmp_path / "triton_kernels-1.0.dist-info").mkdir()
    assert package_version("triton", [str(tmp_path)]) == "3.6.0"
    assert package_version("torch", [str(tmp_path)]) is None
