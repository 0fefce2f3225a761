# ruff: noqa: TID253 - torch is what is measured here
"""The probe measures for real on a CPU, in fractions of a second; CUDA's clock is a fake with known times."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from preflight.hw_plan import CardKind
from preflight.plan import Precision
from trainers.probe import __main__ as program
from trainers.probe import device as probe_device
from trainers.probe import disk as probe_disk
from trainers.probe.clock import Clock
from trainers.probe.links import all_reduce

CPU = torch.device("cpu")


def test_matmul_rates_come_by_size_and_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(probe_device.SIZES, "cpu", (64, 128))
    rates = probe_device.matmul_rates(CPU, [Precision.fp32, Precision.bf16], 0.1)
    assert [(rate.precision, rate.n) for rate in rates] == [("fp32", 64), ("fp32", 128), ("bf16", 64), ("bf16", 128)]
    assert all(1e6 < rate.flops_per_second < 1e15 for rate in rates)


def test_sizes_that_no_longer_fit_the_time_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(probe_device.SIZES, "cpu", (64, 2**14))
    rates = probe_device.matmul_rates(CPU, [Precision.fp32], 0.02)
    assert [rate.n for rate in rates] == [64]


def test_copy_counts_what_is_read_and_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(probe_device.COPY_BYTES, "cpu", 2**20)
    monkeypatch.setattr(Clock, "median_seconds", lambda self, work, budget_seconds: 1e-3)
    assert probe_device.copy_bytes_per_second(CPU, 0.1) == pytest.approx(2 * 2**20 / 1e-3)


def test_host_share_is_the_slope_over_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 layers 5 ms, 6 layers 9 ms: 1 ms a layer, 3 ms without any."""
    seconds = {2: 5e-3, 6: 9e-3}
    monkeypatch.setattr(probe_device, "_pass_seconds", lambda device, precision, n_layer, budget: seconds[n_layer])
    assert probe_device.host_seconds(CPU, Precision.fp32, 1.0) == pytest.approx((3e-3, 1e-3))


@pytest.mark.parametrize("seconds", [{2: 9e-3, 6: 9e-3}, {2: 9e-3, 6: 5e-3}, {2: 1e-3, 6: 9e-3}])
def test_host_share_that_noise_hides_is_not_measured(
    seconds: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for 2 and 6 layers, less for more of them, or nothing beside them."""
    monkeypatch.setattr(probe_device, "_pass_seconds", lambda device, precision, n_layer, budget: seconds[n_layer])
    with pytest.raises(RuntimeError, match="a longer look may do"):
        probe_device.host_seconds(CPU, Precision.fp32, 1.0)


def test_narrow_model_is_the_trainers_own_and_trains() -> None:
    assert probe_device._pass_seconds(CPU, Precision.bf16, 2, 0.05) > 0


def test_disk_is_written_read_and_left_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_disk, "FILE_BYTES", 2**23)
    written, read = probe_disk.disk_bytes_per_second(tmp_path / "runs", 1.0)
    assert written > 1e5
    assert read > 1e5
    assert list((tmp_path / "runs").iterdir()) == []


def test_two_ranks_measure_their_link() -> None:
    bus_bytes_per_second, latency_seconds = all_reduce("cpu", 2, 2, 0.05)
    assert bus_bytes_per_second > 1e6
    assert 0 < latency_seconds < 1


def test_one_measurement_that_fails_does_not_take_the_others_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_disk(folder: Path, budget_seconds: float) -> tuple[float, float]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(program, "disk_bytes_per_second", no_disk)
    monkeypatch.setitem(probe_device.SIZES, "cpu", (64,))
    n_threads = torch.get_num_threads()
    found = program.measured(CardKind.cpu, 1, n_threads, [Precision.fp32], tmp_path, 0.2)
    assert found["disk_write_bytes_per_second"] is None
    assert found["bus_bytes_per_second"] is None
    assert found["matmul"][0]["flops_per_second"] > 0
    assert any("No space left" in note for note in found["notes"])
    json.dumps(found)


class FakeEvent:
    """Marks on a stream whose clock the work moves."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = FakeEvent.now

    def elapsed_time(self, other: FakeEvent) -> float:
        return (other.at - self.at) * 1e3


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A card that does nothing but count its synchronisations."""
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append("sync"))
    return calls


def test_cuda_is_timed_by_events_between_synchronisations(cuda: list[str]) -> None:
    def work() -> None:
        FakeEvent.now += 0.004

    clock = Clock(torch.device("cuda", 0))
    assert clock.seconds(work, 5) == pytest.approx(0.02)
    assert cuda == ["sync", "sync"]  # nothing of before is counted, and nothing is missing
    assert clock.median_seconds(work, 0.01) == pytest.approx(0.004)


def test_full_card_measures_smaller_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 x 1024^2 x 4 bytes fit a quarter of 64 MiB; 2048 does not."""
    sizes: list[int] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**26, 2**30))
    monkeypatch.setattr(probe_device, "_matmul_rate", lambda device, dtype, n, budget: sizes.append(n) or 1e15)
    rates = probe_device.matmul_rates(torch.device("cuda", 0), [Precision.bf16], 1.0)
    assert sizes == [1024]
    assert rates[0].flops_per_second == 1e15


def test_apples_gpu_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch, "mps", SimpleNamespace(synchronize=lambda: calls.append("sync")))
    Clock(torch.device("mps")).seconds(lambda: calls.append("work"), 2)
    assert calls == ["sync", "work", "work", "sync"]


def test_rocm_answers_to_the_name_cuda() -> None:
    assert program.DEVICE_TYPES[CardKind.rocm] == "cuda"
