"""How far off is the step-time formula on public training runs it was not made for?

The habit to beat stands beside it: 6 x parameters x tokens / (cards x peak x 40 %).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from preflight.step_time.constants import CONSTANTS
from preflight.step_time.step import all_ranks_peak_flops_per_second
from preflight.step_time.terms import HALF_PRECISIONS
from scripts.accuracy_fit import estimated_seconds, fit
from scripts.accuracy_throughput import MeasuredStep

HABIT_MFU = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One estimate held against one measurement."""

    step: MeasuredStep
    estimated_seconds: float
    weight: float = 1.0

    @property
    def error(self) -> float:
        """Estimated / measured - 1."""
        return self.estimated_seconds / self.step.seconds - 1

    @property
    def is_covered(self) -> bool:
        """The measurement lies within the uncalibrated band."""
        constants = CONSTANTS[self.step.plan.hw.card.kind]
        return constants.low_factor <= self.step.seconds / self.estimated_seconds <= constants.high_factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors as fractions of the measured value."""

    n_used: int
    median_absolute_error: float
    p90_absolute_error: float
    median_signed_error: float
    coverage: float
    habit_median_absolute_error: float
    habit_p90_absolute_error: float


def as_document(judged: Sequence[Judged], skipped: dict[str, int]) -> dict[str, Any]:
    """Overall, of what people train with, of the rows that resemble our trainer, and by source."""
    half = [one for one in judged if is_half(one.step)]
    by_source: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        by_source[one.step.source].append(one)
    ordered = sorted(by_source.items(), key=lambda item: -len(item[1]))
    parts = {
        "overall": judged,
        "half_precision": half,
        "nanogpt_like": [one for one in half if one.step.is_nanogpt_like],
    }
    document: dict[str, Any] = {name: asdict(score(part)) for name, part in parts.items() if part}
    document["overall"]["n_skipped"] = sum(skipped.values())
    document["by_source"] = {source: asdict(score(part)) for source, part in ordered}
    document["skipped"] = skipped
    return document


def judge(steps: Sequence[MeasuredStep], *, leave_one_source_out: bool, calibrated: bool) -> list[Judged]:
    """Every usable row with its estimate."""
    estimates = _without_their_source(steps) if leave_one_source_out else [estimated_seconds(step) for step in steps]
    judged = [Judged(step=step, estimated_seconds=seconds) for step, seconds in zip(steps, estimates, strict=True)]
    return _calibrated(judged) if calibrated else judged


def _without_their_source(steps: Sequence[MeasuredStep]) -> list[float]:
    constants = {
        source: fit([step for step in steps if step.source != source and is_half(step)])
        for source in {step.source for step in steps}
    }
    return [estimated_seconds(step, constants[step.source]) for step in steps]


def _calibrated(judged: Sequence[Judged]) -> list[Judged]:
    groups: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        groups[one.step.group].append(one)
    return [
        Judged(
            step=one.step,
            estimated_seconds=one.estimated_seconds * other.step.seconds / other.estimated_seconds,
            weight=1 / (len(group) - 1),
        )
        for group in groups.values()
        for one in group
        for other in group
        if other is not one
    ]


def is_half(step: MeasuredStep) -> bool:
    """What people train with."""
    return step.plan.trainer.precision in HALF_PRECISIONS


def score(judged: Sequence[Judged]) -> Score:
    """Errors over the rows, each row weighing the same."""
    habit = [(habit_seconds(one.step) / one.step.seconds - 1, one.weight) for one in judged]
    errors = [(one.error, one.weight) for one in judged]
    weight = sum(one.weight for one in judged)
    return Score(
        n_used=len({one.step.id for one in judged}),
        median_absolute_error=quantile(((abs(error), w) for error, w in errors), 0.5),
        p90_absolute_error=quantile(((abs(error), w) for error, w in errors), 0.9),
        median_signed_error=quantile(errors, 0.5),
        coverage=sum(one.weight for one in judged if one.is_covered) / weight,
        habit_median_absolute_error=quantile(((abs(error), w) for error, w in habit), 0.5),
        habit_p90_absolute_error=quantile(((abs(error), w) for error, w in habit), 0.9),
    )


def habit_seconds(step: MeasuredStep) -> float:
    """6ND at 40 % of the listed peak."""
    peak = all_ranks_peak_flops_per_second(step.plan)
    assert peak is not None  # rows have cards of the catalog with known rates
    return 6 * step.n_params * step.plan.trainer.tokens_per_step / (HABIT_MFU * peak)


def quantile(weighted: Iterable[tuple[float, float]], fraction: float) -> float:
    """The smallest value with at least `fraction` of the weight at or below it."""
    ranked = sorted(weighted)
    target = fraction * sum(weight for _, weight in ranked)
    below = 0.0
    for value, weight in ranked:
        below += weight
        if below >= target - 1e-9:
            return value
    raise ValueError("no rows to judge")


def as_text(document: dict[str, Any]) -> str:
    """A line a source."""
    head = f"{'':44} {'rows':>5} {'median':>7} {'p90':>7} {'signed':>7} {'cover':>6}   6ND/40 %: median, p90"
    titles = {"overall": "all", "half_precision": "bf16 and fp16", "nanogpt_like": "compiled, nanoGPT-like"}
    lines = [head, *(_line(title, document[name]) for name, title in titles.items() if name in document), ""]
    lines += [_line(source, values) for source, values in document["by_source"].items()]
    skipped = sorted(document["skipped"].items(), key=lambda item: -float(item[1]))
    lines += ["", f"skipped {document['overall']['n_skipped']} rows:"]
    return "\n".join(lines + [f"  {n:>4}  {reason}" for reason, n in skipped])


def introduction(flags: str) -> str:
    """What the table is, for docs/accuracy.md."""
    return (
        f"`python scripts/bench_accuracy.py --throughput FILE.csv{flags} --write docs/accuracy.md`\n\n"
        "Optimizer steps that other people timed with their own code. Errors are fractions of the measured time; "
        "`cover`: within\nthe band of an uncalibrated bill. Beside it the habit to beat, 6 x parameters x tokens / "
        "(peak x 40 %).\n"
        "Leave one source out: the fitted constants have not seen the source that is judged. Calibrated: one other run "
        "of the\nsame code, card, length and checkpointing scales the formula. What a code base does beside what its "
        "rows say (dropout,\na loss outside the compiled graph, evaluations inside the clock) is read from its source "
        "(`scripts/throughput_codes.py`).\nWhat is not modelled stands under the table, as reasons of skipped rows; "
        "what each constant rests on:\n[time_and_money.md](time_and_money.md)."
    )


def _line(name: str, values: dict[str, float]) -> str:
    return (
        f"{name[:44]:44} {values['n_used']:5} {values['median_absolute_error']:7.1%}"
        f" {values['p90_absolute_error']:7.1%} {values['median_signed_error']:+7.1%} {values['coverage']:6.0%}"
        f"   {values['habit_median_absolute_error']:17.1%} {values['habit_p90_absolute_error']:6.1%}"
    )
