"""Can this computer carry the run: software, disk, memory, cores, launcher, tracking?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from conf.choices import TrackingBackend, TrackingMode
from preflight.checks.finding import machine_error, warning
from preflight.errors import ExitCode
from preflight.estimate import Estimate
from preflight.hw_plan import CardKind
from preflight.machine.snapshot import Machine
from preflight.plan import RunPlan
from preflight.units import format_bytes
from preflight.verdict.judge import Finding, Severity

OLDEST_TORCH = (2, 9)
SPILL_FRACTION = 0.85  # WSL and Windows move what does not fit to system memory, four to six times slower


def judge_host(plan: RunPlan, machine: Machine, needs: Estimate) -> Iterator[Finding]:
    """What is to be said of the computer around the cards."""
    yield from _torch(plan, machine)
    yield from _disk(plan, machine, needs)
    yield from _memory(plan, machine, needs)
    yield from _cores(plan, machine)
    yield from _windows(plan, machine)
    yield from _tracking(plan, machine)


def _torch(plan: RunPlan, machine: Machine) -> Iterator[Finding]:
    wanted = ".".join(map(str, OLDEST_TORCH))
    if machine.torch is None:
        yield machine_error("software.torch", "PyTorch is not installed", f'pip install "torch>={wanted}"')
        return
    version = tuple(int(part) for part in re.findall(r"\d+", machine.torch)[:2])
    if version < OLDEST_TORCH:
        message = f"PyTorch {machine.torch} is older than {wanted}"
        yield machine_error("software.torch", message, f'pip install "torch>={wanted}"')
    if plan.hw.card.kind is CardKind.cuda and machine.torch.endswith("+cpu"):
        message = f"PyTorch {machine.torch} is built without CUDA and cannot use the GPUs here"
        yield machine_error("software.torch", message, "pip install --force-reinstall torch, or hw=cpu")


def _disk(plan: RunPlan, machine: Machine, needs: Estimate) -> Iterator[Finding]:
    if needs.disk_bytes <= machine.disk_free_bytes:
        return
    n_kept = plan.trainer.keep_checkpoints + plan.trainer.keep_best
    message = (
        f"{plan.runs_dir} has {format_bytes(machine.disk_free_bytes)} free, {n_kept} checkpoints of "
        f"{format_bytes(needs.memory.checkpoint_bytes)} and one in the making take {format_bytes(needs.disk_bytes)}"
    )
    n_fitting = machine.disk_free_bytes // needs.memory.checkpoint_bytes - 1 - plan.trainer.keep_best
    fewer = f"trainer.keep_checkpoints={n_fitting}, or " if n_fitting >= 1 else ""
    yield machine_error("host.disk", message, f"{fewer}runs_dir= on a larger volume")


def _memory(plan: RunPlan, machine: Machine, needs: Estimate) -> Iterator[Finding]:
    """On a GPU machine: the processes beside the cards. On a CPU: what others have taken of the memory planned with."""
    needed, available = needs.memory.host_memory_bytes, machine.memory_available_bytes
    if plan.hw.card.kind is CardKind.cpu and needs.memory.usable_bytes is not None:
        needed = min(needed, needs.memory.usable_bytes * plan.hw.n_gpus_per_node)  # more is lowered or refused
    if needed <= available:
        return
    message = (
        f"the processes take {format_bytes(needed)} of host memory, {format_bytes(available)} of "
        f"{format_bytes(machine.memory_total_bytes)} are free"
    )
    fraction = int(100 * available / machine.memory_total_bytes) / 100
    smaller = f", or budget.max_memory_fraction={fraction:g}" if plan.hw.card.kind is CardKind.cpu and fraction else ""
    yield warning("host.memory", message, f"end other programs{smaller}")


def _cores(plan: RunPlan, machine: Machine) -> Iterator[Finding]:
    n_ranks = plan.hw.n_gpus_per_node
    if n_ranks > machine.n_cpu_cores:
        cores = "core" if machine.n_cpu_cores == 1 else "cores"
        message = f"{n_ranks} ranks share {machine.n_cpu_cores} CPU {cores} and will wait for each other"
        fix = f"hw={machine.n_cpu_cores}xcpu" if plan.hw.card.kind is CardKind.cpu else "a machine with a core for each"
        yield warning("host.cores", message, fix)


def _windows(plan: RunPlan, machine: Machine) -> Iterator[Finding]:
    if machine.platform == "windows" and plan.hw.world_size > 1:
        message = "torchrun needs libuv, which PyTorch's Windows builds lack"
        yield machine_error("launch.windows", message, "WSL or Linux, or one rank: hw.n_gpus_per_node=1")
    spills = machine.platform in ("windows", "wsl") and plan.hw.card.kind is CardKind.cuda
    if spills and plan.budget.max_memory_fraction > SPILL_FRACTION:
        message = "Windows drivers move what does not fit into system memory and run on, four to six times slower"
        yield warning("host.spill", message, f"budget.max_memory_fraction={SPILL_FRACTION:g}")


def _tracking(plan: RunPlan, machine: Machine) -> Iterator[Finding]:
    tracking = plan.tracking
    if tracking.backend is not TrackingBackend.wandb or machine.wandb_key:
        return
    if tracking.mode is TrackingMode.online:
        fix = "wandb login, or tracking.mode=offline"
        message = "tracking.mode=online, but no W&B key is configured"
        yield Finding(
            check="tracking.key", severity=Severity.error, message=message, fix=fix, exit_code=ExitCode.CONFIG
        )
    elif tracking.mode is TrackingMode.auto:
        message = "no W&B key is configured, so the run is kept offline"
        yield Finding(check="tracking.key", severity=Severity.info, message=message, fix="wandb login, or wandb sync")
