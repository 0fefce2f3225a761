"""How far off are the sums on public measurements they were not made for?

    python scripts/bench_accuracy.py --memory FILE.csv [--rows] [--json]
    python scripts/bench_accuracy.py --throughput FILE.csv [--leave-one-source-out] [--calibrated] [--json]

--leave-one-source-out  every source is judged with constants that were fitted without it: the number to quote
--calibrated            one run of the same code, card, length and checkpointing scales the formula; the others are
                        judged, each with every other run of its group in turn

Errors are fractions of the measured value. Coverage: the measurement lies within [low, high]. False fit: reported out
of memory, said to fit (the band's high edge, the allocator's holes at their middle, within 95 % of the card).
False refusal: it ran, said not to fit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from preflight.band import Band
from preflight.memory.peak import MemoryEstimate, estimate_workload
from preflight.units import GIB
from scripts import accuracy_page, accuracy_throughput, throughput_scores
from scripts.accuracy_memory import MeasuredMemory, read_rows

PAGE_INTRODUCTION = """`python scripts/bench_accuracy.py --memory FILE.csv --write docs/accuracy.md`

Peaks that other people measured with their own code, which the sums know from documented defaults and the words of a
row's note alone (`scripts/memory_frameworks.py`). Errors are fractions of the measured value; `cover`: within
[low, high], widened by 15 % on either side since foreign code is known from its documentation, and from allocated to
device bytes where a source does not say what it read; false fits: went out of memory, said to fit."""
NOT_MODELLED = """Not modelled: encoder models; adapters other than LoRA; fp8 and fp4 arithmetic; tensor, context and
pipeline parallelism; activations offloaded to the host; compilers other than Inductor; value embeddings beyond their
tables. Known to be too low: runs with 4-bit weights (what bitsandbytes holds beside them is not explained by its code:
litgpt's rows are up to half again as large as their sum), and full-parameter training under an unstated DeepSpeed
configuration. Compiled plans have a wider band: Inductor decides for itself what it keeps. No number of ours comes from
a CUDA card yet: context, NCCL and slack are from public dumps (`tests/gpu/test_memory_on_card.py` measures them)."""
# Other people's code is known from its documentation, not from a trace.
OTHER_CODE_FACTORS = (0.85, 1.15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One estimate held against one measurement."""

    row: MeasuredMemory
    estimate: MemoryEstimate
    needed: MemoryEstimate  # with the holes that the allocator cannot give back when memory is short

    @property
    def band(self) -> Band:
        """The number that was measured."""
        allocated, reserved, device = self.estimate.allocated, self.estimate.reserved, self.estimate.device
        if self.row.kind == "unstated":  # any of the three
            low, mid, high = allocated.low, reserved.mid, device.high
        else:
            one = {"allocated": allocated, "device": device}.get(self.row.kind, reserved)
            low, mid, high = one.low, one.mid, one.high
        below, above = OTHER_CODE_FACTORS
        return Band(low=below * low, mid=mid, high=above * high, source="formula")

    @property
    def error(self) -> float | None:
        """Estimated / measured - 1."""
        return None if self.row.measured_bytes is None else self.band.mid / self.row.measured_bytes - 1

    @property
    def is_covered(self) -> bool:
        """The measurement lies within the band."""
        return self.row.measured_bytes is not None and self.band.low <= self.row.measured_bytes <= self.band.high

    @property
    def is_said_to_fit(self) -> bool | None:
        """As the verdict would; None: the card's memory is not known."""
        usable = self.estimate.usable_bytes
        needed = self.needed
        spread = (needed.reserved.high - needed.allocated.high) - (needed.reserved.mid - needed.allocated.mid)
        return None if usable is None else needed.device.high - spread <= usable


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--memory", type=Path, metavar="FILE.csv", help="measured peaks")
    what.add_argument("--throughput", type=Path, metavar="FILE.csv", help="measured steps")
    parser.add_argument("--rows", action="store_true", help="of --memory: a line a row")
    parser.add_argument("--leave-one-source-out", action="store_true", help="of --throughput")
    parser.add_argument("--calibrated", action="store_true", help="of --throughput")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--write", type=Path, metavar="docs/accuracy.md", help="its section of that page")
    options = parser.parse_args(arguments)
    if options.memory is not None and (options.leave_one_source_out or options.calibrated):
        parser.error("--leave-one-source-out and --calibrated belong to --throughput")
    if options.throughput is not None and options.rows:
        parser.error("--rows belongs to --memory")
    return _judge_memory(options) if options.memory is not None else _judge_throughput(options)


def _judge_throughput(options: argparse.Namespace) -> int:
    steps, skipped = accuracy_throughput.read_rows(options.throughput)
    judged = throughput_scores.judge(
        steps, leave_one_source_out=options.leave_one_source_out, calibrated=options.calibrated
    )
    document = throughput_scores.as_document(judged, skipped)
    print(json.dumps(document, indent=1) if options.json else throughput_scores.as_text(document))
    if options.write is not None:
        title = "Step time after one run" if options.calibrated else "Step time of public runs"
        flags = " --leave-one-source-out" * options.leave_one_source_out + " --calibrated" * options.calibrated
        body = f"{throughput_scores.introduction(flags)}\n\n{accuracy_page.code(throughput_scores.as_text(document))}"
        accuracy_page.put_section(options.write, title.lower(), title, body)
    return 0


def _judge_memory(options: argparse.Namespace) -> int:
    rows, skipped = read_rows(options.memory)
    judged = [judge(row) for row in rows]
    document = as_document(judged, skipped)
    if options.rows:
        print("\n".join(_row_line(one) for one in judged), end="\n\n")
    print(json.dumps(document, indent=1) if options.json else as_text(document))
    if options.write is not None:
        body = f"{PAGE_INTRODUCTION}\n\n{accuracy_page.code(as_text(document))}\n\n{NOT_MODELLED}"
        accuracy_page.put_section(options.write, "memory of public runs", "Memory of public runs", body)
    return 0


def judge(row: MeasuredMemory) -> Judged:
    """When memory is short the allocator gives cached segments back and tries again: holes count at their middle."""
    tight = row.work._replace(expandable_segments=True)
    return Judged(row=row, estimate=estimate_workload(row.plan, row.work), needed=estimate_workload(row.plan, tight))


def as_document(judged: Sequence[Judged], skipped: dict[str, int]) -> dict[str, Any]:
    """Overall, of the rows that resemble our trainer, and by source."""
    by_source: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        by_source[one.row.source].append(one)
    ordered = sorted(by_source.items(), key=lambda item: -len(item[1]))
    return {
        "overall": score(judged) | {"n_skipped": sum(skipped.values())},
        "nanogpt_like": score([one for one in judged if one.row.is_nanogpt_like]),
        "by_source": {source: score(part) for source, part in ordered},
        "skipped": skipped,
    }


def score(judged: Sequence[Judged]) -> dict[str, float | int | None]:
    """Each row weighs the same; None: no row to judge by."""
    errors = sorted(one.error for one in judged if one.error is not None)
    sizes = sorted(map(abs, errors))
    measured = [one for one in judged if one.error is not None]
    out_of_memory = [one for one in judged if one.row.kind == "oom"]
    ran = [one for one in judged if one.row.kind != "oom" and one.is_said_to_fit is not None]
    return {
        "n_used": len(judged),
        "n_peaks": len(measured),
        "median_absolute_error": statistics.median(sizes) if sizes else None,
        "p90_absolute_error": sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))] if sizes else None,
        "median_signed_error": statistics.median(errors) if errors else None,
        "coverage": sum(one.is_covered for one in measured) / len(measured) if measured else None,
        "n_out_of_memory": len(out_of_memory),
        "false_fits": sum(bool(one.is_said_to_fit) for one in out_of_memory),
        "n_ran": len(ran),
        "false_refusals": sum(not one.is_said_to_fit for one in ran),
    }


def as_text(document: dict[str, Any]) -> str:
    """A line a source."""
    head = f"{'':36}{'rows':>5}{'peaks':>6}{'median':>8}{'p90':>8}{'signed':>8}{'cover':>7}  false fits, refusals"
    lines = [head, _line("all", document["overall"]), _line("nanoGPT-like", document["nanogpt_like"]), ""]
    lines += [_line(source, values) for source, values in document["by_source"].items()]
    lines += ["", f"skipped {document['overall']['n_skipped']} rows:"]
    reasons = sorted(document["skipped"].items(), key=lambda item: -int(item[1]))
    return "\n".join(lines + [f"  {n:>4}  {reason}" for reason, n in reasons])


def _line(name: str, values: dict[str, float | int | None]) -> str:
    def percent(key: str, width: int, sign: str = "") -> str:
        value = values[key]
        return f"{'-':>{width}}" if value is None else f"{value:>{sign}{width}.1%}"

    return (
        f"{name[:36]:36}{values['n_used']:>5}{values['n_peaks']:>6}{percent('median_absolute_error', 8)}"
        f"{percent('p90_absolute_error', 8)}{percent('median_signed_error', 8, '+')}{percent('coverage', 7)}"
        f"  {values['false_fits']} of {values['n_out_of_memory']}, {values['false_refusals']} of {values['n_ran']}"
    )


def _row_line(one: Judged) -> str:
    row, band = one.row, one.band
    measured = row.kind if row.measured_bytes is None else f"{row.measured_bytes / GIB:.2f}"
    error = "" if one.error is None else f"{one.error:+.1%}"
    verdict = {True: "fits", False: "does not fit", None: ""}[one.is_said_to_fit]
    trainer = row.plan.trainer
    return (
        f"{row.id:>4} {row.plan.model.name[:32]:32} {trainer.micro_batch_size:>3} x {trainer.sequence_length:<6}"
        f" {measured:>7} | {band.low / GIB:6.2f} {band.mid / GIB:6.2f} {band.high / GIB:6.2f} {error:>7}"
        f" {'covered' if one.is_covered else '':8}{one.estimate.phase:15} {verdict}"
    )


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
