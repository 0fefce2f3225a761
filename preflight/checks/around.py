"""Can ranks meet and talk here, and is the data read fast enough: shared memory, files, ports, network, disks?"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.checks.finding import machine_error, note, warning
from preflight.estimate import Estimate
from preflight.hw_plan import CardKind
from preflight.machine.snapshot import Machine
from preflight.plan import RunPlan
from preflight.units import GIB, MIB, format_bytes
from preflight.verdict.judge import Finding

SHM_BYTES = GIB  # NCCL takes some 10 MB a channel and pair of ranks; docker's default of 64 MB is too little (nccl#342)
MAPPED_BYTES = 400 * MIB  # beside what is used: libraries, stacks, heaps; 430 to 580, torch 2.13, one and two threads
FILES_PER_RANK = 64  # sockets to every other rank of the node, pipes, libraries, token files, logs
FILES_BESIDES = 256
TOKEN_BYTES = {"uint16": 2, "uint32": 4}
# Reads of a sequence from anywhere: a spinning disk moves its head 100 times a second, a network file system answers
# some 1,000 requests of one client.
READS_PER_SECOND = {"hdd": 100.0}
READS_PER_SECOND_OVER_NETWORK = 1000.0


def judge_around(plan: RunPlan, machine: Machine, needs: Estimate) -> Iterator[Finding]:
    """What is to be said of the way between the ranks and to the data."""
    yield from _shared_memory(plan, machine)
    yield from _open_files(plan, machine)
    yield from _address_space(plan, machine, needs)
    yield from _port(plan, machine)
    yield from _nodes(plan, machine)
    yield from _network(plan, machine)
    yield from _reading(plan, machine, needs)


def _shared_memory(plan: RunPlan, machine: Machine) -> Iterator[Finding]:
    shm = machine.around.shm_bytes
    if shm is None or shm >= SHM_BYTES or plan.hw.n_gpus_per_node < 2 or plan.hw.card.kind is not CardKind.cuda:
        return
    message = (
        f"/dev/shm has {format_bytes(shm)}, NCCL needs about {format_bytes(SHM_BYTES)} between the ranks of a machine"
    )
    yield machine_error(
        "host.shm", message, "docker run --shm-size=1g or --ipc=host, or mount -o remount,size=1g /dev/shm"
    )


def _open_files(plan: RunPlan, machine: Machine) -> Iterator[Finding]:
    """Of one process: agent and ranks each have a limit of their own."""
    limit = machine.around.n_open_files
    wanted = FILES_BESIDES + FILES_PER_RANK * plan.hw.n_gpus_per_node
    if limit is not None and limit < wanted:
        message = f"a process may open {limit} files, {plan.hw.n_gpus_per_node} ranks take up to {wanted}"
        yield warning("host.files", message, f"ulimit -n {max(4096, wanted)}")


def _address_space(plan: RunPlan, machine: Machine, needs: Estimate) -> Iterator[Finding]:
    """`ulimit -v` counts what is mapped, much of which is never touched."""
    limit = machine.around.address_space_bytes
    if limit is None:
        return
    fix = "ulimit -v unlimited (a limit of the container or of control groups counts what is used)"
    if plan.hw.card.kind is not CardKind.cpu:
        message = f"a process may map {format_bytes(limit)} (ulimit -v); a card's driver maps more than the card has"
        yield warning("host.address_space", message, fix)
    elif limit < (wanted := MAPPED_BYTES + needs.memory.device.mid):
        message = f"a process may map {format_bytes(limit)} (ulimit -v), PyTorch and the run map {format_bytes(wanted)}"
        yield machine_error("host.address_space", message, fix)


def _port(plan: RunPlan, machine: Machine) -> Iterator[Finding]:
    """One machine never needs a port of the user's: its ranks meet at one that the system gives."""
    around = machine.around
    if "MASTER_PORT" in around.environment and machine.world is None and not around.port_is_free:
        message = f"MASTER_PORT={around.port} is taken by another run or a process left over"
        fix = (
            "unset MASTER_PORT: a free port is found"
            if plan.hw.n_nodes == 1
            else f"MASTER_PORT={_free_port(around.port)}"
        )
        yield note("launch.port", message, fix)


def _free_port(taken: int) -> int:
    return taken + 1 if taken < 65535 else taken - 1


def _nodes(plan: RunPlan, machine: Machine) -> Iterator[Finding]:
    """One launch.py cannot start processes on other computers; torchrun on each of them can."""
    hw = plan.hw
    if hw.n_nodes == 1 or machine.world is not None:
        return
    arguments = plan.command.partition("launch.py")[2].strip()
    port = machine.around.port if machine.around.port_is_free else _free_port(machine.around.port)
    command = (
        f"torchrun --nnodes={hw.n_nodes} --nproc-per-node={hw.n_gpus_per_node} --rdzv-backend=c10d "
        f"--rdzv-endpoint={machine.hostname}:{port} launch.py {arguments}"
    ).rstrip()
    yield machine_error("launch.nodes", f"{hw.n_nodes} nodes need torchrun, started on each of them", command)


def _network(plan: RunPlan, machine: Machine) -> Iterator[Finding]:
    if plan.hw.n_nodes == 1:
        return
    around, asked = machine.around, machine.around.environment
    chosen = asked.get("NCCL_SOCKET_IFNAME") or asked.get("GLOO_SOCKET_IFNAME")
    if len(around.interfaces) > 1 and not chosen:
        message = f"several networks are up ({', '.join(around.interfaces)}) and nothing says which one joins the nodes"
        yield warning("network.interface", message, f"NCCL_SOCKET_IFNAME={around.interfaces[0]} on every node")
    elif chosen and around.interfaces and not any(name.startswith(chosen.strip("^=")) for name in around.interfaces):
        message = f"NCCL_SOCKET_IFNAME={chosen} is no network that is up here ({', '.join(around.interfaces)})"
        yield machine_error("network.interface", message, f"NCCL_SOCKET_IFNAME={around.interfaces[0]}")
    if around.has_infiniband is False and asked.get("NCCL_IB_DISABLE") != "1" and plan.hw.card.kind is CardKind.cuda:
        message = "there is no InfiniBand here: NCCL that finds one on another node fails before the first step"
        yield note(
            "network.infiniband", message, "NCCL_IB_DISABLE=1 on every node, if the first all-reduce hangs or fails"
        )


def _reading(plan: RunPlan, machine: Machine, needs: Estimate) -> Iterator[Finding]:
    """Every sequence is a read of its own, unless the file stays in memory, as one that fits soon does."""
    kind, speed = machine.around.disk, needs.step.tokens_per_second
    if kind in (None, "ssd") or speed is None or plan.data.n_train_tokens is None:
        return
    file_bytes = plan.data.n_train_tokens * TOKEN_BYTES.get(plan.data.dtype or "uint16", 2)
    if file_bytes <= machine.memory_available_bytes - needs.memory.host_memory_bytes:
        return
    wanted = speed.mid / plan.trainer.sequence_length / plan.hw.n_nodes
    offered = READS_PER_SECOND.get(kind, READS_PER_SECOND_OVER_NETWORK)
    if wanted > offered:
        what = "a spinning disk" if kind == "hdd" else f"a network file system ({kind})"
        message = (
            f"training reads {wanted:,.0f} sequences a second from {what} that answers about {offered:,.0f}, "
            f"and {format_bytes(file_bytes)} do not fit in memory: steps take {wanted / offered:.0f} times as long"
        )
        yield warning("host.disk_speed", message, "data.dir= on a local SSD")
