"""Which machine is meant: which card, how many, whose, and what does it cost to have?

`hw=auto` is this machine (its GPUs, else Apple's, else the CPU); under torchrun the number of ranks is torchrun's.
A named card is described by the catalog alone, so that its bill is the same wherever it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from conf.schema import HwConfig
from preflight import catalog
from preflight.errors import WrongMachine
from preflight.hw_plan import Card, CardKind, Electricity, HwPlan, Offer
from preflight.machine.snapshot import Machine, World
from preflight.resolve.hw_names import ANY_GPU, MAX_PER_NODE, likely_hw, similar_cards, unknown_card
from preflight.resolve.hw_offers import check_offer, given_price, own_offer, rented_offer, unknown_offer
from preflight.resolve.local_cards import apple_card, cpu_card, gpu_card
from preflight.resolve.resolution import Resolution
from preflight.units import GIB

TERA = 1e12
GIGA = 1e9
CUSTOM_NEEDS = ("memory_gib", "bandwidth_gb_per_second")
CUSTOM_RATES = ("bf16_tflops", "fp16_tflops", "fp32_tflops")

# As the rows network_* of conf/catalog/links.csv have them.
USUAL_GBIT_NVLINK, USUAL_GBIT = 200.0, 25.0  # an adapter a card, or one a node


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What is known before the batch is divided among the ranks."""

    card: Card
    n_nodes: int
    n_gpus_per_node: int
    declared: str
    is_here: bool  # described by looking at this machine
    may_use_fewer: bool  # hw=auto: the number of GPUs was not asked for


def find_hardware(hw: HwConfig, machine: Machine, resolution: Resolution) -> Hardware | None:
    """None: no such card; the problem is noted."""
    asked = hw.card.strip().lower()
    _refuse_stray_numbers(hw, asked, resolution)
    if asked == "auto":
        card, n_here = _this_machine(machine)
        origin = "detected"
    elif asked in ("cpu", "mps"):
        card, n_here, origin = cpu_card(machine) if asked == "cpu" else apple_card(machine), 1, "given"
        if asked == "mps" and machine.apple_gpu is None:
            resolution.refuse("hw.card", "mps", "there is no Apple GPU here", "hw=auto")
            return None
    else:
        found = custom_card(hw, resolution) if asked == "custom" else _catalog_card(hw, machine, resolution)
        if found is None:
            return None
        card, n_here, origin = found, 1, "given"
    if resolution.provenance.setdefault("hw.card", origin) and machine.world is not None:
        n_here = machine.world.local_world_size
    is_counted = hw.n_gpus_per_node is not None
    if card.kind in (CardKind.cuda, CardKind.rocm) and machine.world is None:
        _refuse_crowded_node(hw, resolution)
    return Hardware(
        card=card,
        n_nodes=_n_nodes(hw, machine.world),
        n_gpus_per_node=resolution.choose("hw.n_gpus_per_node", hw.n_gpus_per_node, n_here, _origin(machine, asked)),
        declared=_declared(hw),
        is_here=asked in ("auto", "cpu", "mps"),
        may_use_fewer=asked == "auto" and not is_counted and machine.world is None,
    )


def check_world(hardware: Hardware, hw: HwConfig, machine: Machine) -> None:
    """WrongMachine when torchrun started another number of ranks than `hw` names, or than there are GPUs."""
    world = machine.world
    if world is None:
        return
    started = f"torchrun started {world.world_size} ranks, {world.local_world_size} on this node"
    ranks = hardware.n_nodes * hardware.n_gpus_per_node
    if ranks != world.world_size or hardware.n_gpus_per_node != world.local_world_size:
        raise WrongMachine(
            f"hw={hardware.declared} means {ranks} ranks, {hardware.n_gpus_per_node} on a node; {started}.\n"
            f"  To fix: leave out hw= (the number is torchrun's), or torchrun --nnodes={hardware.n_nodes} "
            f"--nproc_per_node={hardware.n_gpus_per_node}"
        )
    if hw.card == "auto" and machine.gpus and world.local_world_size > len(machine.gpus):
        raise WrongMachine(
            f"{started}, where there are {len(machine.gpus)} GPUs.\n"
            f"  To fix: torchrun --nproc_per_node={len(machine.gpus)}, or hw=cpu"
        )


def complete_hardware(
    hardware: Hardware, n_gpus_per_node: int, hw: HwConfig, machine: Machine, resolution: Resolution, today: str
) -> HwPlan | None:
    """The plan of the machine with its offers; None when the country is unknown."""
    owned = hw.owned if hw.owned is not None else hardware.is_here and hw.price_usd_per_hour is None
    resolution.provenance["hw.owned"] = "default" if hw.owned is None else "given"
    resolution.provenance["hw.disk_bytes_per_second"] = "default, 500 MB/s; action=calibrate measures it"
    rented = rented_offer(hw, hardware.card, n_gpus_per_node, today)
    own = own_offer(hw, machine.hostname, today)
    offer = own if owned else rented or unknown_offer(hw, hardware.card, n_gpus_per_node, today)
    if hw.price_usd_per_hour is not None:
        offer = replace(offer, **given_price(hw, f"{n_gpus_per_node} x {hardware.card.label}", today, owned=owned))
    check_offer(hw, resolution, owned=owned)
    electricity = _electricity(hw, offer, resolution)
    if electricity is None:
        return None
    return HwPlan(
        card=hardware.card,
        n_nodes=hardware.n_nodes,
        n_gpus_per_node=n_gpus_per_node,
        declared=hardware.declared,
        detected=hardware.is_here,
        host_memory_bytes=machine.memory_total_bytes if hardware.is_here else None,
        n_cpu_cores=machine.n_cpu_cores if hardware.is_here else None,
        disk_bytes_per_second=None,
        offer=offer,
        alternative=rented if owned else replace(own, instance=""),
        electricity=electricity,
        host_watts=None,
        watts=hw.watts,
        network_bytes_per_second=_network(hw, hardware, n_gpus_per_node, resolution),
    )


def _network(hw: HwConfig, hardware: Hardware, n_gpus_per_node: int, resolution: Resolution) -> float | None:
    """Bytes a second between nodes, as listed; None: what such nodes usually have, and the bill says so."""
    if hw.network_gbit_per_second is not None:
        resolution.provenance["hw.network_gbit_per_second"] = "given"
        return hw.network_gbit_per_second * GIGA / 8
    if hardware.n_nodes > 1:
        usual = USUAL_GBIT_NVLINK * n_gpus_per_node if hardware.card.nvlink_bytes_per_second else USUAL_GBIT
        resolution.provenance["hw.network_gbit_per_second"] = f"default: {usual:g} Gb/s between nodes are assumed"
    return None


def rented_from(hw: HwPlan, offer: Offer) -> HwPlan:
    """The same machine from another provider, whose data centres waste more or less."""
    pue, _ = catalog.pue(offer.provider)
    return replace(hw, offer=offer, electricity=replace(hw.electricity, pue=pue))


def custom_card(hw: HwConfig, resolution: Resolution) -> Card | None:
    """A card that the catalog lacks, from the numbers given."""
    custom = hw.custom
    missing = [name for name in CUSTOM_NEEDS if getattr(custom, name) is None]
    if all(getattr(custom, name) is None for name in CUSTOM_RATES):
        missing.append(CUSTOM_RATES[0])
    if missing or custom.memory_gib is None or custom.bandwidth_gb_per_second is None:
        example = {"memory_gib": "24", "bandwidth_gb_per_second": "1000", "bf16_tflops": "165"}
        fix = " ".join(f"hw.custom.{name}={example[name]}" for name in missing)
        resolution.refuse("hw.card", "custom", f"a card of your own needs {', '.join(missing)}", fix)
        return None
    rates = {"bf16": custom.bf16_tflops, "fp16": custom.fp16_tflops or custom.bf16_tflops, "fp32": custom.fp32_tflops}
    peaks = {name: rate * TERA for name, rate in rates.items() if rate is not None}
    default_capability = 8.0 if custom.bf16_tflops is not None else 7.0
    return Card(
        name="custom",
        label=f"your own card, {custom.memory_gib:g} GiB",
        kind=CardKind.cuda,
        compute_capability=custom.compute_capability or default_capability,
        memory_bytes=int(custom.memory_gib * GIB),
        bandwidth_bytes_per_second=custom.bandwidth_gb_per_second * GIGA,
        peak_flops_per_second=peaks,
        has_bf16=custom.bf16_tflops is not None,
        watts=custom.watts,
        ecc=None,
        nvlink_bytes_per_second=0.0,
        p2p=None,
        pcie_generation=None,
        source="given",
        as_of="",
    )


def _refuse_crowded_node(hw: HwConfig, resolution: Resolution) -> None:
    """Somebody means several nodes: the links inside a node and the price of one are of no such machine."""
    n_gpus = hw.n_gpus_per_node
    if n_gpus is None or n_gpus <= MAX_PER_NODE or not resolution.is_sound("hw.n_gpus_per_node"):
        return
    each = catalog.most_on_a_node()
    n_nodes = max(1, round(hw.n_nodes * n_gpus / each))
    message = (
        f"no machine has {n_gpus} cards; {each} on a node are the most that is rented out, {MAX_PER_NODE} the most "
        f"that is built: hw={n_nodes}x{each}x{hw.card}"
    )
    fix = f"hw.n_nodes={n_nodes} hw.n_gpus_per_node={each}"
    resolution.refuse("hw.n_gpus_per_node", n_gpus, message, fix)


def _refuse_stray_numbers(hw: HwConfig, asked: str, resolution: Resolution) -> None:
    """Numbers of a custom card have no effect on another one."""
    names = (*CUSTOM_NEEDS, *CUSTOM_RATES, "watts", "compute_capability")
    stray = [name for name in names if getattr(hw.custom, name) is not None]
    if stray and asked != "custom":
        path = f"hw.custom.{stray[0]}"
        resolution.refuse(path, getattr(hw.custom, stray[0]), f"has no effect with hw.card={hw.card}", "hw=custom")


def _this_machine(machine: Machine) -> tuple[Card, int]:
    if machine.gpus:
        return gpu_card(machine.gpus), len(machine.gpus)
    if machine.apple_gpu is not None:
        return apple_card(machine), 1
    return cpu_card(machine), 1


def _catalog_card(hw: HwConfig, machine: Machine, resolution: Resolution) -> Card | None:
    name = hw.card
    try:
        card = catalog.find_card(name)
    except KeyError:
        message, fix = _instead_of_unknown(hw, machine)
        resolution.refuse("hw", _declared(hw), message, fix)
        return None
    if catalog.is_ambiguous(name):
        resolution.provenance["hw.card"] = f"given: {name} fits several cards; taken is the commonest, {card.label}"
    return card


def _instead_of_unknown(hw: HwConfig, machine: Machine) -> tuple[str, str]:
    """What to say about a card that the catalog lacks, and an override that works."""
    meant = likely_hw(_declared(hw))
    if meant is not None:
        written = "a machine is written as hw=4x4090 (cards) or hw=2x8xh100 (nodes, cards)"
        return f"{written}; did you mean hw={meant}?", f"hw={meant}"
    if hw.card.strip().lower() in ANY_GPU:
        if machine.gpus:
            here = _declared(replace(hw, card="auto"))
            return "the card needs its name, or auto for the GPUs of this machine", f"hw={here}"
        named = _declared(replace(hw, card="4090", n_gpus_per_node=hw.n_gpus_per_node or 1))
        return "the card needs its name; no GPU is seen here to take it from", f"hw={named} dry_run=true"
    near = similar_cards(hw.card)
    fix = f"hw={_declared(replace(hw, card=near[0]))}" if near else "hw=auto action=compare"
    return unknown_card(hw.card), fix


def _n_nodes(hw: HwConfig, world: World | None) -> int:
    if world is None or hw.n_gpus_per_node is not None or hw.n_nodes != 1:
        return hw.n_nodes
    return max(1, world.world_size // world.local_world_size)


def _origin(machine: Machine, asked: str) -> str:
    return "detected" if machine.world is not None or asked == "auto" else "default"


def _declared(hw: HwConfig) -> str:
    nodes = f"{hw.n_nodes}x" if hw.n_nodes != 1 else ""
    count = f"{hw.n_gpus_per_node}x" if hw.n_gpus_per_node is not None else "1x" if nodes else ""
    return f"{nodes}{count}{hw.card}"


def _electricity(hw: HwConfig, offer: Offer, resolution: Resolution) -> Electricity | None:
    try:
        listed = catalog.electricity(hw.country)
    except KeyError as error:
        meant = [*catalog.near_countries(hw.country), "world"][0]
        fix = f"hw.country={meant}" if " " not in meant else f"'hw.country={meant}'"
        resolution.refuse("hw.country", hw.country, str(error.args[0]), fix)
        return None
    pue, _ = (listed.pue, "") if offer.owned else catalog.pue(offer.provider)
    if hw.electricity_usd_per_kwh is None:
        return replace(listed, pue=pue)
    return replace(listed, pue=pue, usd_per_kwh=hw.electricity_usd_per_kwh, source="given", as_of="given")
