"""Can the cards that are here do what the plan asks of them: driver and CUDA, precision, power, heat, links, ECC?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from preflight import priors
from preflight.checks.finding import machine_error, note, warning
from preflight.hw_plan import CardKind
from preflight.machine.gpu import Gpu
from preflight.machine.snapshot import Machine
from preflight.plan import Precision, RunPlan
from preflight.verdict.judge import Finding

NEEDED_CAPABILITY = {Precision.bf16: 8.0, Precision.bf16_pure: 8.0, Precision.tf32: 8.0, Precision.fp16: 5.3}
LOW_POWER_FRACTION = 0.9  # of the default limit: a twentieth costs nearly nothing, a third costs a fifth of the speed
HOT_CELSIUS = 83.0  # where GeForce boards begin to lower their clocks (NVIDIA's default target temperature)
# Drivers before 525.105.17 let 4090s read each other's memory, which they cannot: all-reduce hung or copied zeros
# (NVIDIA/nccl-tests#117, tinygrad/open-gpu-kernel-modules#45).
FIRST_SOUND_DRIVER_4090 = (525, 105)
P2P_OFF = "NCCL_P2P_DISABLE"


def judge_health(plan: RunPlan, machine: Machine) -> Iterator[Finding]:
    """Of the visible cards that ranks would take, in order."""
    if plan.hw.card.kind is not CardKind.cuda:
        return
    used = machine.gpus[: plan.hw.n_gpus_per_node]
    if not used:
        return
    yield from _driver(machine, used)
    yield from _capability(plan, machine, used)
    yield from _power(used)
    yield from _heat(used)
    yield from _laptop(used)
    yield from _peers(plan, machine, used)
    yield from _ecc(plan, used)


def _driver(machine: Machine, used: Sequence[Gpu]) -> Iterator[Finding]:
    """A driver runs every CUDA up to its own; within a major release also newer ones."""
    built, driver = machine.around.torch_cuda, used[0].driver
    needs = priors.cuda_needs(int(built.split(".")[0])) if built else None
    number = re.match(r"\d+", driver)
    if built is None or needs is None or number is None or int(number[0]) >= needs.min_driver:
        return
    runs = f", which runs CUDA {used[0].cuda} at most" if used[0].cuda else ""
    message = f"PyTorch is built with CUDA {built}, which needs driver {needs.min_driver}; here is {driver}{runs}"
    older = f"https://download.pytorch.org/whl/cu{used[0].cuda.replace('.', '')}" if used[0].cuda else "an older CUDA"
    yield machine_error("software.driver", message, f"a newer driver, or pip install torch from {older}")


def _capability(plan: RunPlan, machine: Machine, used: Sequence[Gpu]) -> Iterator[Finding]:
    known = [gpu for gpu in used if gpu.compute_capability is not None]
    if not known:
        return
    oldest = min(known, key=lambda gpu: gpu.compute_capability or 0.0)
    capability = oldest.compute_capability or 0.0
    built = machine.around.torch_cuda
    needs = priors.cuda_needs(int(built.split(".")[0])) if built else None
    if needs is not None and capability < needs.min_compute_capability:
        message = (
            f"GPU {oldest.index} ({oldest.name}) has compute capability {capability}; CUDA {built}, "
            f"that PyTorch is built with, needs {needs.min_compute_capability}"
        )
        yield machine_error("software.capability", message, "an older build: pip install torch for cu126, or hw=cpu")
    wanted = NEEDED_CAPABILITY.get(plan.trainer.precision, 0.0)
    if capability < wanted:
        name = plan.trainer.precision.value
        message = (
            f"GPU {oldest.index} ({oldest.name}) has compute capability {capability}: {name} needs {wanted} "
            "and would be emulated, many times slower"
        )
        fix = f"trainer.precision={'fp16' if capability >= 7.0 else 'fp32'}"
        yield machine_error("cards.capability", message, fix)


def _power(used: Sequence[Gpu]) -> Iterator[Finding]:
    for gpu in used:
        limit, usual = gpu.power_limit_watts, gpu.default_power_limit_watts
        if limit is None or usual is None or limit >= LOW_POWER_FRACTION * usual:
            continue
        message = (
            f"GPU {gpu.index} may draw {limit:.0f} W of its usual {usual:.0f}: steps take longer than the bill says"
        )
        yield warning("cards.power", message, f"nvidia-smi -i {gpu.index} -pl {usual:.0f}, or a few steps to calibrate")
        return


def _heat(used: Sequence[Gpu]) -> Iterator[Finding]:
    slowed = [gpu for gpu in used if gpu.slowdowns]
    hot = [gpu for gpu in used if (gpu.temperature_celsius or 0.0) >= HOT_CELSIUS and not gpu.slowdowns]
    for gpu in slowed[:1]:
        why = " and ".join({"heat": "heat", "power_brake": "the power supply's brake"}[name] for name in gpu.slowdowns)
        at = f" at {gpu.temperature_celsius:.0f} C" if gpu.temperature_celsius is not None else ""
        message = f"GPU {gpu.index} is slowed down by {why}{at} before the run has begun"
        yield warning("cards.throttled", message, "air and fans, or a lower power limit: nvidia-smi -pl")
    for gpu in hot[:1]:
        message = (
            f"GPU {gpu.index} has {gpu.temperature_celsius:.0f} C before the run has begun; clocks fall at about 83"
        )
        yield warning("cards.hot", message, "end what runs on it, or more air")


def _laptop(used: Sequence[Gpu]) -> Iterator[Finding]:
    """The same name as a desktop's card, half its power or less."""
    for gpu in used:
        if re.search(r"laptop|mobile|max-q", gpu.name, re.IGNORECASE):
            watts = "" if gpu.power_limit_watts is None else f", {gpu.power_limit_watts:.0f} W here"
            message = f"{gpu.name} is no desktop card{watts}: heat and the lid decide its speed, which falls over time"
            yield warning("cards.laptop", message, "action=calibrate, mains power, and air below it")
            return


def _peers(plan: RunPlan, machine: Machine, used: Sequence[Gpu]) -> Iterator[Finding]:
    if len(used) < 2:
        return
    is_old = _version(used[0].driver) < FIRST_SOUND_DRIVER_4090
    if is_old and any(re.search(r"RTX 40\d\d", gpu.name) for gpu in used) and P2P_OFF not in machine.around.environment:
        message = f"driver {used[0].driver} lets RTX 40 cards read each other's memory, and they hang or copy zeros"
        yield machine_error("cards.p2p_driver", message, f"a driver from 525.105 on, or {P2P_OFF}=1")
    links = [gpu.n_nvlinks for gpu in used if gpu.n_nvlinks is not None]
    if links and min(links) == 0 and max(links) > 0:
        without = next(gpu.index for gpu in used if gpu.n_nvlinks == 0)
        message = f"GPU {without} has no active NVLink, others here have: all-reduce goes at the slowest link's speed"
        yield warning("cards.nvlink", message, "nvidia-smi nvlink --status, or CUDA_VISIBLE_DEVICES= with linked cards")
    counts_on_it = plan.hw.card.p2p or (plan.hw.card.nvlink_bytes_per_second or 0.0) > 0
    if counts_on_it and any(gpu.peers and not all(gpu.peers) for gpu in used):
        message = "the driver does not let the cards read each other's memory, as the bill has it: gradients go round"
        yield warning("cards.p2p", message, "nvidia-smi topo -p2p r says why (virtual machine, ACS, driver)")


def _ecc(plan: RunPlan, used: Sequence[Gpu]) -> Iterator[Finding]:
    off = [gpu for gpu in used if gpu.ecc is False]
    if off and plan.hw.card.ecc:
        message = f"ECC is switched off on GPU {off[0].index}: a flipped bit can spoil the run unseen"
        yield note("cards.ecc_off", message, f"nvidia-smi -i {off[0].index} -e 1 and a restart")


def _version(driver: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", driver)[:2])
