"""The same question asked of `nvidia-smi -q -x`, where the driver is here and its Python library is not.

Tags of NVIDIA's nvsmi_device DTDs v11 to v13; older drivers say power_readings and clocks_throttle_reasons.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from xml.etree import ElementTree

from preflight.machine.gpu import Gpu
from preflight.units import MIB

SMI_SECONDS = 5.0
COMMAND = ("nvidia-smi", "-q", "-x")
RESERVED_BYTES_WHEN_UNKNOWN = 600 * MIB  # as in preflight.machine.nvml


def read_smi(visible: str | None) -> tuple[Gpu, ...]:
    """Empty when the program is not there or does not answer in time."""
    try:
        told = subprocess.run(COMMAND, capture_output=True, text=True, timeout=SMI_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_smi(told, visible)


def parse_smi(xml: str, visible: str | None = None) -> tuple[Gpu, ...]:
    """Whole cards, those that CUDA_VISIBLE_DEVICES names, in its order."""
    try:
        log = ElementTree.fromstring(xml)
    except ElementTree.ParseError:
        return ()
    cards = [(card, _gpu(index, card, log)) for index, card in enumerate(log.iter("gpu"))]
    return tuple(gpu for _, gpu in cards) if visible is None else tuple(_chosen(cards, visible))


def _chosen(cards: list[tuple[ElementTree.Element, Gpu]], visible: str) -> Iterator[Gpu]:
    """Numbers or UUID prefixes, cut at the first that fits nothing, as CUDA does."""
    for entry in (part.strip() for part in visible.split(",")):
        found = next((gpu for card, gpu in cards if _is_called(card, gpu, entry)), None)
        if found is None:
            return
        yield found


def _is_called(card: ElementTree.Element, gpu: Gpu, entry: str) -> bool:
    if entry.isdigit():
        return gpu.index == int(entry)
    return len(entry) > len("GPU-") and (card.findtext("uuid") or "").startswith(entry)


def _gpu(index: int, card: ElementTree.Element, log: ElementTree.Element) -> Gpu:
    total, free = _mebibytes(card, "total"), _mebibytes(card, "free")
    reserved = _number(card.findtext("fb_memory_usage/reserved"))
    kept = RESERVED_BYTES_WHEN_UNKNOWN if reserved is None else int(reserved * MIB)
    addressable = max(0, total - kept)
    power = next(
        (card.find(tag) for tag in ("gpu_power_readings", "power_readings") if card.find(tag) is not None), None
    )
    ecc = card.findtext("ecc_mode/current_ecc") or ""
    return Gpu(
        index=index,
        name=(card.findtext("product_name") or "unknown NVIDIA card").strip(),
        memory_total_bytes=addressable,
        memory_free_bytes=min(free, addressable),
        compute_capability=None,  # the catalog knows it by the name
        power_limit_watts=_watts(power, "current_power_limit", "enforced_power_limit", "power_limit"),
        default_power_limit_watts=_watts(power, "default_power_limit"),
        driver=log.findtext("driver_version") or "unknown",
        cuda=log.findtext("cuda_version"),
        holders=tuple(_holders(card)),
        temperature_celsius=_number(card.findtext("temperature/gpu_temp")),
        slowdowns=_slowdowns(card),
        ecc={"Enabled": True, "Disabled": False}.get(ecc.strip()),
    )


def _mebibytes(card: ElementTree.Element, tag: str) -> int:
    return int((_number(card.findtext(f"fb_memory_usage/{tag}")) or 0.0) * MIB)


def _number(text: str | None) -> float | None:
    """`450.00 W`, `24564 MiB`, `41 C`; N/A is unknown."""
    found = re.match(r"\s*(-?[\d.]+)", text or "")
    return float(found[1]) if found else None


def _watts(power: ElementTree.Element | None, *tags: str) -> float | None:
    numbers = (_number(power.findtext(tag)) for tag in tags) if power is not None else ()
    return next((number for number in numbers if number is not None), None)


def _slowdowns(card: ElementTree.Element) -> tuple[str, ...]:
    active = " ".join(item.tag for item in card.iter() if (item.text or "").strip() == "Active")
    found = ["heat"] if "thermal_slowdown" in active else []
    return tuple([*found, "power_brake"] if "power_brake_slowdown" in active else found)


def _holders(card: ElementTree.Element) -> Iterator[str]:
    """Programs that compute; a desktop's own (type G) hold little."""
    for process in card.iter("process_info"):
        if "C" in (process.findtext("type") or ""):
            name = (process.findtext("process_name") or "").split(" ")[0].rpartition("/")[2]
            yield f"pid {process.findtext('pid')}" + (f" ({name})" if name else "")
