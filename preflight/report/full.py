"""The bill with its working: every term, every input and where it came from, every source with its date."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from preflight.bill import Bill
from preflight.plan import Factor, Precision, RunPlan
from preflight.products import product_precision
from preflight.report.text import bill_text, finding_line
from preflight.report.words import UNKNOWN, bytes_with_band, folded, seconds_with_band
from preflight.report.worth import INDENT, NAME_WIDTH, money_section, row, value_section
from preflight.units import GB, GIB, format_bytes, format_count, format_runs, format_seconds
from preflight.verdict.fitting import STATE_BYTES_PER_PARAM
from preflight.verdict.judge import Severity

# `accelerate estimate-memory` 1.x, column "Training using Adam": the largest of weights, gradients and Adam's states
# together at batch 1, without activations: 4 x the fp32 weights, or 2 x in half precision.
ACCELERATE_BYTES_PER_PARAM = {
    precision: 16 if precision in (Precision.fp32, Precision.tf32) else 8 for precision in Precision
}
PLAN_NAMES = {"hw.card": "hw.card.name", "hw.owned": "hw.offer.owned", "hw.price_usd_per_hour": "hw.offer.usd_per_hour"}
RULE_BYTES_PER_PARAM = (12, 16)  # the rule of thumb: fp32 weights and Adam, without and with gradients


def full_text(bill: Bill) -> str:
    """The one-screen bill, then the working."""
    sections = (
        [bill_text(bill, is_full=True).rstrip()],
        _memory_section(bill),
        _rules_section(bill),
        _time_section(bill),
        money_section(bill),
        value_section(bill),
        _calibration_section(bill),
        _notes_section(bill),
        _inputs_section(bill.plan),
        _sources_section(bill.plan),
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole > 0 else ""


def _memory_section(bill: Bill) -> list[str]:
    memory = bill.estimate.memory
    lines = [f"Memory of one rank at its peak ({memory.phase.replace('_', ' ')}); the terms sum to the total"]
    for name, n_bytes in memory.terms_bytes.items():
        lines.append(row(name.removesuffix("_bytes"), format_bytes(n_bytes), _share(n_bytes, memory.device.mid)))
    lines.append(row("total on the device", format_bytes(memory.device.mid)))
    for name, band in (("allocated", memory.allocated), ("reserved", memory.reserved), ("device", memory.device)):
        lines.append(f"{INDENT}{name:<{NAME_WIDTH - 10}}{bytes_with_band(band)}   [{band.source}]")
    lines.append("Allocated memory by phase")
    lines += [row(name, format_bytes(n_bytes)) for name, n_bytes in memory.phases_bytes.items()]
    lines.append(row("host memory of a node", format_bytes(memory.host_memory_bytes)))
    lines.append(row("one checkpoint on disk", format_bytes(memory.checkpoint_bytes)))
    lines.append(row("disk for all kept checkpoints", format_bytes(bill.estimate.disk_bytes)))
    return lines


def _rules_section(bill: Bill) -> list[str]:
    """What shorter sums would have said of the same plan."""
    n_params, precision = bill.estimate.n_params, bill.plan.trainer.precision
    low, high = (n * n_params for n in RULE_BYTES_PER_PARAM)
    accelerate = format_bytes(ACCELERATE_BYTES_PER_PARAM[precision] * n_params)
    states = format_bytes(STATE_BYTES_PER_PARAM * n_params)
    return [
        f"What shorter sums say of these {format_count(n_params)} parameters",
        f"{INDENT}fp32 weights, gradients and Adam, {STATE_BYTES_PER_PARAM} B a parameter: {states}",
        f"{INDENT}the rule of 12 to 16 B a parameter: {low / GB:.2f}-{high / GB:.2f} GB = "
        f"{low / GIB:.2f}-{high / GIB:.2f} GiB",
        f"{INDENT}accelerate estimate-memory ({precision.value}): {accelerate}, batch 1, no activations or logits",
    ]


def _time_section(bill: Bill) -> list[str]:
    step, wall = bill.estimate.step, bill.estimate.wall
    lines = [f"One step: {seconds_with_band(step.seconds)}" + (f"   [{step.seconds.source}]" if step.seconds else "")]
    total = sum(step.terms_seconds.values())
    lines += [row(name, format_seconds(s), _share(s, total)) for name, s in step.terms_seconds.items()]
    lines.append(row("model FLOPs of a step", f"{step.flops_per_step:.4g}"))
    peak = UNKNOWN if step.peak_flops_per_second is None else f"{step.peak_flops_per_second / 1e12:,.1f} TFLOP/s"
    lines.append(row(f"peak of all ranks ({product_precision(bill.plan).value})", peak))
    if step.raw_seconds is not None:
        lines.append(row("the formula alone", format_seconds(step.raw_seconds)))
    lines.append(
        f"Wall time: {seconds_with_band(wall.seconds)}" + (f"   [{wall.seconds.source}]" if wall.seconds else "")
    )
    total = sum(wall.terms_seconds.values())
    return lines + [row(name, format_seconds(s), _share(s, total)) for name, s in wall.terms_seconds.items()]


def _calibration_section(bill: Bill) -> list[str]:
    calibration = bill.plan.calibration
    if not calibration.factors:
        return ["Calibration: none; formulas and published measurements alone"]
    lines = [f"Calibration from {format_runs(calibration.n_runs)} of the ledger"]
    return lines + [_factor_row(name, factor) for name, factor in calibration.factors.items()]


def _factor_row(name: str, factor: Factor) -> str:
    band = f"({factor.low:.3g}-{factor.high:.3g})"
    return row(name, f"{factor.value:.4g}") + f"  {band}  {format_runs(factor.n_runs)}, {factor.scope}"


def _notes_section(bill: Bill) -> list[str]:
    notes = [finding_line(finding) for finding in bill.verdict.findings if finding.severity is Severity.info]
    return ["Notes", *notes] if notes else []


def _inputs_section(plan: RunPlan) -> list[str]:
    """Every input of the plan that has an origin, by origin."""
    if not plan.provenance:
        return []
    lines = ["Inputs and where they came from"]
    for path, origin in sorted(plan.provenance.items(), key=lambda item: (item[1], item[0])):
        word = origin.partition(":")[0]  # the reason stands in a note above
        lines.append(f"{INDENT}{path:<{NAME_WIDTH}} {_plan_value(plan, path):<22} {word}".rstrip())
    return lines


def _plan_value(plan: RunPlan, path: str) -> str:
    """The value that the plan holds under a configuration path; "" where the plan names it otherwise."""
    value: object = plan
    for name in PLAN_NAMES.get(path, path).split("."):
        value = getattr(value, name, None)
    if isinstance(value, Enum):
        return value.name
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, int | str) else ""


def _sources_section(plan: RunPlan) -> list[str]:
    hw = plan.hw
    facts = {
        f"card {hw.card.name}": (hw.card.source, hw.card.as_of),
        "electricity": (hw.electricity.source, hw.electricity.as_of),
    }
    for name, offer in (("offer", hw.offer), ("other offer", hw.alternative)):
        if offer is not None and offer.source:
            facts[name] = (f"{offer.provider} {offer.instance}: {offer.source}", offer.as_of)
    return ["Sources", *(_source_row(name, fact) for name, fact in facts.items()), *_software(plan)]


def _source_row(name: str, fact: tuple[str, str]) -> str:
    source, as_of = fact
    return folded(INDENT + name, f"{source}, {as_of}" if as_of else source)


def _software(plan: RunPlan) -> list[str]:
    versions: Mapping[str, str | None] = {"python": plan.software.python, "torch": plan.software.torch}
    text = ", ".join(f"{name} {version or UNKNOWN}" for name, version in versions.items())
    return [folded(INDENT + "software", f"{text}, preflight {plan.software.preflight}")]
