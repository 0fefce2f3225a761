"""What this computer is, apart from its cards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from preflight.machine.snapshot import (
    World,
    disk_free_bytes,
    has_wandb_key,
    parse_sysctl,
    probe,
    read_world,
    torch_version,
)

GIB = 2**30

MAC = """\
machdep.cpu.brand_string: Apple M2 Max
hw.memsize: 34359738368
hw.physicalcpu: 12
hw.optional.arm.FEAT_BF16: 1
"""


def test_probe_of_this_machine_is_sane(tmp_path: Path):
    machine = probe(tmp_path / "runs")
    assert machine.hostname
    assert machine.platform in ("linux", "wsl", "darwin", "windows")
    assert machine.n_cpu_cores >= 1
    assert 0 < machine.memory_available_bytes <= machine.memory_total_bytes
    assert machine.disk_free_bytes > 0
    assert machine.python == ".".join(map(str, sys.version_info[:3]))
    assert not (tmp_path / "runs").exists()  # looking writes nothing


def test_probe_needs_neither_torch_nor_psutil_on_linux(tmp_path: Path):
    program = (
        "import sys, pathlib; from preflight.machine.snapshot import probe; probe(pathlib.Path(sys.argv[1]));"
        "print(sorted({'torch', 'psutil', 'pynvml', 'numpy', 'wandb'} & set(sys.modules)))"
    )
    environment = {"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment)
    expected = "[]" if sys.platform == "linux" else "['psutil']"
    assert done.stdout.strip() == expected


def test_read_world_needs_all_four():
    environment = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    assert read_world(environment) == World(rank=3, local_rank=1, world_size=4, local_world_size=2)
    for name in environment:
        assert read_world({key: value for key, value in environment.items() if key != name}) is None
    assert read_world({**environment, "RANK": "first"}) is None
    assert read_world({}) is None


def test_torch_version_from_the_folder_name(tmp_path: Path):
    (tmp_path / "torch-2.13.0+cpu.dist-info").mkdir()
    (tmp_path / "torchvision-0.30.dist-info").mkdir()
    assert torch_version([str(tmp_path / "missing"), str(tmp_path)]) == "2.13.0+cpu"
    assert torch_version([str(tmp_path / "missing")]) is None


def test_torch_version_from_an_egg_info(tmp_path: Path):
    (tmp_path / "torch-2.9.1-py3.11.egg-info").mkdir()
    assert torch_version([str(tmp_path)]) == "2.9.1"


def test_torch_version_agrees_with_the_metadata():
    from importlib.metadata import version

    assert torch_version(sys.path) == version("torch")


def test_disk_free_of_a_folder_that_is_not_there_yet(tmp_path: Path):
    free = disk_free_bytes(tmp_path / "not" / "yet")
    assert free > 0
    assert abs(free - disk_free_bytes(tmp_path)) < GIB


@pytest.mark.parametrize(
    ("netrc", "environment", "found"),
    [
        ("", {}, False),
        ("", {"WANDB_API_KEY": "abc"}, True),
        ("", {"WANDB_API_KEY": " "}, False),
        ("machine api.wandb.ai\n  login user\n  password abc\n", {}, True),
        ("machine github.com login user password abc", {}, False),
        ("machine wandb.mine.org login user password abc", {"WANDB_BASE_URL": "https://wandb.mine.org/"}, True),
        ("machine api.wandb.ai login user password abc", {"WANDB_BASE_URL": "http://localhost:8080"}, False),
    ],
)
def test_wandb_key_in_environment_or_netrc(tmp_path: Path, netrc: str, environment: dict[str, str], found: bool):
    (tmp_path / ".netrc").write_text(netrc)
    assert has_wandb_key(environment, tmp_path) is found


def test_wandb_key_for_the_server_of_the_settings_file(tmp_path: Path):
    settings = tmp_path / ".config" / "wandb" / "settings"
    settings.parent.mkdir(parents=True)
    settings.write_text("[default]\nbase_url = http://localhost:8080\n")
    netrc = tmp_path / "secrets"
    netrc.write_text("machine localhost:8080 login user password abc")
    assert has_wandb_key({"NETRC": str(netrc)}, tmp_path)
    assert not has_wandb_key({}, tmp_path)


def test_a_mac_has_a_gpu_that_shares_its_memory():
    host, apple_gpu = parse_sysctl(MAC, 20 * GIB)
    assert apple_gpu == "Apple M2 Max"
    assert (host.n_cpu_cores, host.memory_total_bytes, host.memory_available_bytes) == (12, 32 * GIB, 20 * GIB)
    assert host.cpu_flags == {"neon", "bf16"}


def test_an_intel_mac_has_no_mps():
    host, apple_gpu = parse_sysctl("machdep.cpu.brand_string: Intel(R) Core(TM) i9\nhw.physicalcpu: 8\n", GIB)
    assert apple_gpu is None
    assert host.cpu_flags == frozenset()
