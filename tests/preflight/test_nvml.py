"""The NVML path, through a fake pynvml that has the real call names."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, field

import pynvml as real_pynvml
import pytest

from preflight.machine.gpu import Gpu
from preflight.machine.nvml import read_gpus

MIB = 2**20
GIB = 2**30


class FakeError(Exception):
    pass


class FakeLibraryNotFoundError(FakeError):
    pass


@dataclass
class FakeCard:
    name: str | bytes
    total: int
    used: int = 0
    reserved: int = 450 * MIB
    capability: tuple[int, int] | None = (8, 9)
    milliwatts: int | None = 450_000
    uuid: str = "GPU-aaaa"
    pids: tuple[int, ...] = ()
    slices: list[FakeCard] = field(default_factory=list)
    default_milliwatts: int | None = 450_000
    celsius: int | None = 41
    reasons: int = 1  # idle
    ecc: tuple[int, int] | None = None
    nvlinks: tuple[int, ...] = ()
    reads_peers: bool = False


def _fake(monkeypatch: pytest.MonkeyPatch, cards: list[FakeCard], *, old_driver: bool = False) -> types.ModuleType:
    module = types.ModuleType("pynvml")

    def memory(card: FakeCard, version: int | None = None) -> types.SimpleNamespace:
        if version is None:  # version 1 counts the driver's own part as used
            used = card.used + card.reserved
            return types.SimpleNamespace(total=card.total, used=used, free=card.total - used)
        if old_driver:
            raise FakeError("Function Not Found")
        free = card.total - card.reserved - card.used
        return types.SimpleNamespace(total=card.total, reserved=card.reserved, used=card.used, free=free)

    def known(value: object) -> object:
        if value is None:
            raise FakeError("Not Supported")
        return value

    def mig_slice(card: FakeCard, index: int) -> FakeCard:
        if index >= len(card.slices):
            raise FakeError("Not Found")
        return card.slices[index]

    calls = {
        "NVMLError": FakeError,
        "NVMLError_LibraryNotFound": FakeLibraryNotFoundError,
        "NVML_DEVICE_MIG_ENABLE": 1,
        "nvmlMemory_v2": 0x02000028,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.95.05",
        "nvmlDeviceGetCount": lambda: len(cards),
        "nvmlDeviceGetHandleByIndex": lambda index: cards[index],
        "nvmlDeviceGetName": lambda card: card.name,
        "nvmlDeviceGetUUID": lambda card: card.uuid,
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetCudaComputeCapability": lambda card: known(card.capability),
        "nvmlDeviceGetEnforcedPowerLimit": lambda card: known(card.milliwatts),
        "nvmlDeviceGetMigMode": lambda card: known((1, 1) if card.slices else None),
        "nvmlDeviceGetMaxMigDeviceCount": lambda card: 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": mig_slice,
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 12_080,
        "nvmlDeviceGetPowerManagementDefaultLimit": lambda card: known(card.default_milliwatts),
        "nvmlDeviceGetTemperature": lambda card, sensor: known(card.celsius if sensor == 0 else None),
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda card: card.reasons,
        "nvmlClocksThrottleReasonSwThermalSlowdown": 0x20,
        "nvmlClocksThrottleReasonHwThermalSlowdown": 0x40,
        "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": 0x80,
        "nvmlDeviceGetEccMode": lambda card: known(card.ecc),
        "NVML_NVLINK_MAX_LINKS": 18,
        "nvmlDeviceGetNvLinkState": lambda card, link: known(card.nvlinks[link] if link < len(card.nvlinks) else None),
        "NVML_P2P_CAPS_INDEX_READ": (0,),  # as nvidia-ml-py writes it
        "NVML_P2P_STATUS_OK": 0,
        "nvmlDeviceGetP2PStatus": lambda card, other, index: 0 if card.reads_peers and index == 0 else 3,
        "nvmlDeviceGetComputeRunningProcesses": lambda card: [types.SimpleNamespace(pid=pid) for pid in card.pids],
    }
    for name, call in calls.items():
        assert hasattr(real_pynvml, name), f"{name} is no longer pynvml's"
        setattr(module, name, call)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def _cards(**environment: str) -> tuple[Gpu, ...]:
    gpus, trouble = read_gpus(environment)
    assert trouble is None
    return gpus


def test_a_card_in_base_units(monkeypatch: pytest.MonkeyPatch):
    _fake(monkeypatch, [FakeCard("NVIDIA GeForce RTX 4090", 24564 * MIB, used=64 * MIB)])
    (gpu,) = _cards()
    assert gpu == Gpu(
        index=0,
        name="NVIDIA GeForce RTX 4090",
        memory_total_bytes=24114 * MIB,  # 24,564 less the 450 that the driver keeps
        memory_free_bytes=24050 * MIB,
        compute_capability=8.9,
        power_limit_watts=450.0,
        driver="580.95.05",
        cuda="12.8",
        default_power_limit_watts=450.0,
        temperature_celsius=41.0,
    )


def test_an_old_driver_does_not_tell_its_own_part(monkeypatch: pytest.MonkeyPatch):
    _fake(monkeypatch, [FakeCard(b"Tesla T4", 15360 * MIB)], old_driver=True)
    (gpu,) = _cards()
    assert gpu.name == "Tesla T4"  # older pynvml returns bytes
    assert gpu.memory_total_bytes == (15360 - 600) * MIB
    assert gpu.memory_free_bytes == (15360 - 600) * MIB


def test_the_health_of_a_card(monkeypatch: pytest.MonkeyPatch):
    hot = FakeCard("NVIDIA A100-SXM4-80GB", 81920 * MIB, reasons=0x24, ecc=(1, 1), nvlinks=(1,) * 11 + (0,), celsius=91)
    _fake(monkeypatch, [hot, FakeCard("NVIDIA GeForce RTX 4090", 24564 * MIB, default_milliwatts=None)])
    first, second = _cards()
    assert (first.slowdowns, first.ecc, first.n_nvlinks, first.temperature_celsius) == (("heat",), True, 11, 91.0)
    assert (first.cuda, first.default_power_limit_watts, first.peers) == ("12.8", 450.0, (False,))
    assert (second.slowdowns, second.ecc, second.n_nvlinks) == ((), None, 0)
    assert second.default_power_limit_watts is None


def test_peers_are_asked_pair_by_pair(monkeypatch: pytest.MonkeyPatch):
    _fake(monkeypatch, [FakeCard("NVIDIA H100", 81559 * MIB, uuid=f"GPU-{i}", reads_peers=True) for i in range(3)])
    assert [gpu.peers for gpu in _cards()] == [(True, True)] * 3


def test_what_the_driver_does_not_say_is_unknown(monkeypatch: pytest.MonkeyPatch):
    _fake(monkeypatch, [FakeCard("GRID A10-24Q", 24 * GIB, capability=None, milliwatts=None)])
    (gpu,) = _cards()
    assert (gpu.compute_capability, gpu.power_limit_watts) == (None, None)


def test_visible_devices_choose_in_their_order(monkeypatch: pytest.MonkeyPatch):
    _fake(monkeypatch, [FakeCard("A", 16 * GIB, uuid=f"GPU-{letter * 8}") for letter in "abcd"])
    assert [gpu.index for gpu in _cards()] == [0, 1, 2, 3]
    assert [gpu.index for gpu in _cards(CUDA_VISIBLE_DEVICES="2,0")] == [2, 0]
    assert [gpu.index for gpu in _cards(CUDA_VISIBLE_DEVICES="GPU-ccc, 1")] == [2, 1]
    assert [gpu.index for gpu in _cards(CUDA_VISIBLE_DEVICES="1,-1,0")] == [1]  # cut at the first that fits nothing
    assert [gpu.index for gpu in _cards(CUDA_VISIBLE_DEVICES="9")] == []
    assert [gpu.index for gpu in _cards(CUDA_VISIBLE_DEVICES="GPU-")] == []


def test_no_visible_devices_never_wake_the_driver():
    assert read_gpus({"CUDA_VISIBLE_DEVICES": ""}) == ((), None)
    assert read_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == ((), None)


def test_a_process_sees_one_mig_slice_and_no_card_beside_it(monkeypatch: pytest.MonkeyPatch):
    slices = [
        FakeCard(f"NVIDIA A100-SXM4-40GB MIG {n}g.{5 * n}gb", 5 * n * GIB, reserved=0, uuid=f"MIG-{n}{n}{n}{n}{n}")
        for n in (1, 2)
    ]
    whole = FakeCard("NVIDIA A100-SXM4-40GB", 40 * GIB, capability=(8, 0), milliwatts=400_000, slices=slices)
    _fake(monkeypatch, [FakeCard("NVIDIA A100-SXM4-40GB", 40 * GIB, uuid="GPU-whole"), whole])
    (gpu,) = _cards()
    assert (gpu.index, gpu.name, gpu.mig) == (1, "NVIDIA A100-SXM4-40GB MIG 1g.5gb", True)
    assert gpu.memory_total_bytes == 5 * GIB
    assert (gpu.compute_capability, gpu.power_limit_watts) == (8.0, None)
    (second,) = _cards(CUDA_VISIBLE_DEVICES="MIG-22222")
    assert second.name.endswith("2g.10gb")
    (card,) = _cards(CUDA_VISIBLE_DEVICES="0")
    assert not card.mig


def test_holders_are_named_when_much_memory_is_taken(monkeypatch: pytest.MonkeyPatch):
    _fake(monkeypatch, [FakeCard("A", 24 * GIB, used=6 * GIB, pids=(999_999_999,)), FakeCard("B", 24 * GIB, pids=(1,))])
    taken, idle = _cards()
    assert taken.holders == ("pid 999999999",)  # another process space's: no name
    assert idle.holders == ()


def test_a_silent_driver_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch):
    module = _fake(monkeypatch, [])

    def mismatch() -> None:
        raise FakeError("Driver/library version mismatch")

    monkeypatch.setattr(module, "nvmlInit", mismatch)
    assert read_gpus({}) == ((), "the NVIDIA driver does not answer: Driver/library version mismatch")


def test_a_machine_without_the_library_has_no_trouble(monkeypatch: pytest.MonkeyPatch):
    module = _fake(monkeypatch, [])

    def missing() -> None:
        raise FakeLibraryNotFoundError("NVML Shared Library Not Found")

    monkeypatch.setattr(module, "nvmlInit", missing)
    assert read_gpus({}) == ((), None)


def test_a_driver_without_pynvml_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus, trouble = read_gpus({})
    assert gpus == ()
    assert "pip install nvidia-ml-py" in trouble
