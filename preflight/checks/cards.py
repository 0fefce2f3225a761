"""Are the cards that the bill is for the cards that are here, whole and free?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from preflight.catalog import find_card
from preflight.checks.finding import warning
from preflight.errors import ExitCode
from preflight.estimate import Estimate
from preflight.hw_plan import Card, CardKind
from preflight.machine.snapshot import Gpu, Machine
from preflight.plan import RunPlan
from preflight.units import GIB, format_bytes
from preflight.verdict.judge import Finding, Severity

SAME_MEMORY = 0.95  # drivers keep some memory for themselves; less than this share is another card or a slice
LARGER_MEMORY = 1.10
BILL_ONLY = "dry_run=true for the bill alone"


def missing_cards(plan: RunPlan, machine: Machine) -> Finding | None:
    """One sentence when what `hw` declares is not here; None when it is."""
    hw, n_needed = plan.hw, plan.hw.n_gpus_per_node
    if hw.card.kind is CardKind.cpu or (hw.detected and hw.card.kind is CardKind.mps):
        return None
    if hw.card.kind is CardKind.mps:
        is_here = machine.apple_gpu is not None and _is_card(machine.apple_gpu, hw.card)
        return None if is_here else _mismatch(plan, machine, "hw=auto")
    alike = [gpu for gpu in machine.gpus if hw.detected or _fits_description(gpu, hw.card)]
    if len(alike) < n_needed:
        fewer = f"hw={len(alike)}x{hw.card.name}, " if alike and not hw.detected else ""
        return _mismatch(plan, machine, f"{fewer}hw=auto")
    if all(gpu in alike for gpu in _used_gpus(plan, machine)):
        return None
    return _mismatch(plan, machine, f"{_only(alike[:n_needed])} to leave the others out")


def judge_cards(plan: RunPlan, machine: Machine, needs: Estimate) -> Iterator[Finding]:
    """What is to be said of cards that are here."""
    if plan.hw.card.kind is CardKind.mps:
        yield warning("cards.mps", "Apple GPUs are for smoke tests: no compile, fp32, rates not measured", "hw=cpu")
    if plan.hw.card.kind is CardKind.cpu and machine.gpu_trouble:
        yield warning("cards.driver", f"{machine.gpu_trouble}; this plan is for the CPU", "nvidia-smi says more")
    if plan.hw.card.kind is not CardKind.cuda:
        return
    used = _used_gpus(plan, machine)
    yield from _mixed(used)
    yield from _memory_taken(plan, used, needs)
    yield from _other_size(plan.hw.card, used, declared=not plan.hw.detected)
    if any(gpu.mig for gpu in used):
        yield warning("cards.mig", f"{used[0].name} is a slice of a card: its speed is not in the catalog", "")


def _mismatch(plan: RunPlan, machine: Machine, cure: str) -> Finding:
    hw, a_node = plan.hw, " a node" if plan.hw.n_nodes > 1 else ""
    declared = f"hw={hw.declared} means {hw.n_gpus_per_node} x {_described(hw.card)}{a_node}"
    message = f"{declared}; this machine has {_found(machine)}"
    return Finding(
        check="cards.declared",
        severity=Severity.error,
        message=message,
        fix=f"{cure}, or {BILL_ONLY}",
        exit_code=ExitCode.WRONG_MACHINE,
    )


def _described(card: Card) -> str:
    memory = "" if card.memory_bytes is None else f" ({format_bytes(card.memory_bytes)})"
    return f"{card.label}{memory}"


def _found(machine: Machine) -> str:
    """Cards by name and real memory, or why there is none."""
    if machine.gpus:
        kinds = Counter((gpu.name, round(gpu.memory_total_bytes / GIB, 1)) for gpu in machine.gpus)
        return ", ".join(f"{n} x {name} ({gib:g} GiB)" for (name, gib), n in kinds.items())
    if machine.apple_gpu:
        return f"an {machine.apple_gpu}"
    trouble = f" ({machine.gpu_trouble})" if machine.gpu_trouble else ""
    return f"no GPU that can be seen{trouble}, {machine.n_cpu_cores} CPU cores"


def _is_card(device_name: str, card: Card) -> bool:
    try:
        return find_card(device_name).name == card.name
    except KeyError:
        return False


def _fits_description(gpu: Gpu, card: Card) -> bool:
    """The named card with the memory it should have; of a custom card only the memory is known."""
    has_memory = card.memory_bytes is None or gpu.memory_total_bytes >= SAME_MEMORY * card.memory_bytes
    return has_memory and not gpu.mig and (card.name == "custom" or _is_card(gpu.name, card))


def _used_gpus(plan: RunPlan, machine: Machine) -> tuple[Gpu, ...]:
    """Ranks take the visible cards in order."""
    return machine.gpus[: plan.hw.n_gpus_per_node]


def _mixed(used: tuple[Gpu, ...]) -> Iterator[Finding]:
    kinds = Counter((gpu.name, round(gpu.memory_total_bytes / GIB)) for gpu in used)
    if len(kinds) < 2:
        return
    listed = ", ".join(f"{n} x {name} {gib} GiB" for (name, gib), n in kinds.items())
    largest = max(gpu.memory_total_bytes for gpu in used)
    best = [gpu for gpu in used if gpu.memory_total_bytes > SAME_MEMORY * largest]
    message = f"mixed cards ({listed}): the smallest memory and the slowest rate count for all"
    smaller = f"{_only(best)} to leave the smaller ones out" if len(best) < len(used) else ""
    yield warning("cards.mixed", message, smaller)


def _only(gpus: Sequence[Gpu]) -> str:
    """nvidia-smi's numbers; CUDA has an order of its own unless told."""
    return f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={','.join(str(gpu.index) for gpu in gpus)}"


def _memory_taken(plan: RunPlan, used: tuple[Gpu, ...], needs: Estimate) -> Iterator[Finding]:
    """Free memory is the budget, not the total: lowering the batch against somebody else's process is in vain."""
    total_needed = needs.memory.device.high
    if needs.memory.usable_bytes is not None:
        total_needed = min(total_needed, needs.memory.usable_bytes)  # what is above it is lowered or refused
    short = [gpu for gpu in used if gpu.memory_free_bytes < total_needed]
    if not short:
        return
    worst = min(short, key=lambda gpu: gpu.memory_free_bytes)
    taken = worst.memory_total_bytes - worst.memory_free_bytes
    holders = ", ".join(worst.holders) or "somebody the driver does not name"
    message = (
        f"GPU {worst.index} has {format_bytes(worst.memory_free_bytes)} of "
        f"{format_bytes(worst.memory_total_bytes)} free, the run takes {format_bytes(total_needed)}; "
        f"{format_bytes(taken)} are held by {holders}"
    )
    fraction = int(100 * worst.memory_free_bytes / worst.memory_total_bytes) / 100
    plan_smaller = f"budget.max_memory_fraction={fraction:g} to plan for what is free" if fraction > 0 else ""
    cures = ["end them", "CUDA_VISIBLE_DEVICES= with free cards", plan_smaller]
    yield Finding(
        check="cards.memory_taken",
        severity=Severity.error,
        message=message,
        fix=", or ".join(cure for cure in cures if cure),
        exit_code=ExitCode.WRONG_MACHINE,
    )


def _other_size(card: Card, used: tuple[Gpu, ...], *, declared: bool) -> Iterator[Finding]:
    """A modded card has more memory than its name says; the catalog's number is then too careful."""
    if not declared or card.memory_bytes is None or not used:
        return
    smallest = min(gpu.memory_total_bytes for gpu in used)
    if smallest > LARGER_MEMORY * card.memory_bytes:
        message = f"the cards here have {format_bytes(smallest)}, the bill counts {format_bytes(card.memory_bytes)}"
        yield Finding(check="cards.larger", severity=Severity.info, message=message, fix="hw=auto plans with it")
