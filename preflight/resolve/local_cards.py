"""What card is this machine's own GPU, Apple GPU or CPU? Names that the catalog knows get its rates, others none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from preflight import catalog
from preflight.hw_plan import Card, CardKind
from preflight.machine.snapshot import Gpu, Machine

# Dense operations per core and cycle (multiply and add count two), for fp32 and bf16, the best unit first. Two vector
# units a core; Intel's optimization manual (AVX2, AVX-512, AMX: 1,024 bf16 a cycle), Arm's Neoverse guides.
FP32_PER_CYCLE = {"avx512f": 64, "avx2": 32, "neon": 16}
BF16_PER_CYCLE = {"amx_bf16": 1024, "avx512_bf16": 128, "bf16": 64}
FP32_PER_CYCLE_OTHERWISE = 8
DEFAULT_HERTZ = 2.5e9
BANDWIDTH_PER_CORE = 10e9  # bytes per second that one core's copies reach, typical
BANDWIDTH_MAX = 100e9  # two to four memory channels
SAME_MEMORY = 0.05  # a driver's total and the catalog's addressable memory differ by less


def cpu_card(machine: Machine) -> Card:
    """All cores of this machine; ranks share them. Rates are defaults worked out from flags and clock, not measured."""
    hertz = machine.cpu_hertz or DEFAULT_HERTZ
    cycles = machine.n_cpu_cores * hertz
    fp32 = next((rate for flag, rate in FP32_PER_CYCLE.items() if flag in machine.cpu_flags), FP32_PER_CYCLE_OTHERWISE)
    bf16 = next((rate for flag, rate in BF16_PER_CYCLE.items() if flag in machine.cpu_flags), None)
    peaks = {"fp32": fp32 * cycles} | ({"bf16": bf16 * cycles} if bf16 else {})
    clock = f"{hertz / 1e9:.1f} GHz" + ("" if machine.cpu_hertz else " (assumed)")
    cores = "core" if machine.n_cpu_cores == 1 else "cores"
    return Card(
        name="cpu",
        label=f"{machine.cpu_name}, {machine.n_cpu_cores} {cores}",
        kind=CardKind.cpu,
        compute_capability=None,
        memory_bytes=machine.memory_total_bytes,
        bandwidth_bytes_per_second=min(BANDWIDTH_PER_CORE * machine.n_cpu_cores, BANDWIDTH_MAX),
        peak_flops_per_second=peaks,
        has_bf16=bf16 is not None,
        watts=None,
        ecc=None,
        nvlink_bytes_per_second=None,
        p2p=None,
        pcie_generation=None,
        source=f"default: {machine.n_cpu_cores} {cores} x {clock} x operations per cycle; bandwidth 10 GB/s a core",
        as_of="",
    )


def apple_card(machine: Machine) -> Card:
    """Unified memory: the card has what the machine has."""
    name = machine.apple_gpu or "Apple GPU"
    try:
        known = catalog.find_card(name)
        return replace(known, memory_bytes=machine.memory_total_bytes)
    except KeyError:
        return _unknown_card("mps", name, CardKind.mps, machine.memory_total_bytes)


def gpu_card(gpus: Sequence[Gpu]) -> Card:
    """The card that a mixed set is worth: the smallest memory and the slowest rate count."""
    cards = [_one_gpu(gpu) for gpu in gpus]
    slowest = min(cards, key=lambda card: max(card.peak_flops_per_second.values(), default=0.0))
    memory = min((card.memory_bytes for card in cards if card.memory_bytes is not None), default=None)
    return replace(slowest, memory_bytes=memory)


def _one_gpu(gpu: Gpu) -> Card:
    try:
        known = catalog.find_card(gpu.name)
    except KeyError:
        unknown = _unknown_card(_short(gpu.name), gpu.name, CardKind.cuda, gpu.memory_total_bytes)
        capability = gpu.compute_capability
        return replace(
            unknown,
            compute_capability=capability,
            has_bf16=capability is not None and capability >= 8.0,
            watts=gpu.power_limit_watts,
        )
    detected, listed = gpu.memory_total_bytes, known.memory_bytes
    is_same = listed is not None and abs(detected / listed - 1) < SAME_MEMORY
    return replace(
        known,
        memory_bytes=listed if is_same else detected,
        watts=gpu.power_limit_watts if gpu.power_limit_watts is not None else known.watts,
        compute_capability=known.compute_capability or gpu.compute_capability,
    )


def _short(name: str) -> str:
    return "_".join(name.lower().replace("nvidia", "").replace("geforce", "").split())


def _unknown_card(name: str, label: str, kind: CardKind, memory_bytes: int) -> Card:
    return Card(
        name=name,
        label=label,
        kind=kind,
        compute_capability=None,
        memory_bytes=memory_bytes,
        bandwidth_bytes_per_second=None,
        peak_flops_per_second={},
        has_bf16=False,
        watts=None,
        ecc=None,
        nvlink_bytes_per_second=None,
        p2p=None,
        pcie_generation=None,
        source="detected; not in the catalog, so its rates are unknown",
        as_of="",
    )
