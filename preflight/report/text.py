"""The bill on one screen: the verdict first, then memory, time, money, energy, batch, value and what they rest on."""

from __future__ import annotations

from conf.choices import PolicyChoice
from preflight.bill import Bill
from preflight.duration import DISK_BYTES_PER_SECOND
from preflight.errors import ExitCode
from preflight.lowering.raising import RAISED_PIN
from preflight.money import format_money, rate_words
from preflight.report.words import (
    UNKNOWN,
    bytes_with_band,
    co2_words,
    folded,
    kwh_with_band,
    machine_words,
    rank_word,
    seconds_with_band,
    significant,
    tuned_words,
    usd_with_band,
)
from preflight.units import format_bytes, format_count, format_seconds
from preflight.verdict.judge import Change, Decision, Finding, Severity, Violation
from preflight.verdict.needs import BUDGET_WORDS

N_FINDINGS = 3
NOTABLE_FRACTION = 0.05  # smaller things do not earn a place on the one screen
DECISION_WORDS = {
    Decision.go: "GO",
    Decision.go_lowered: "GO, LOWERED",
    Decision.refuse: "NO",
    Decision.wrong_machine: "WRONG MACHINE",
}


def bill_text(bill: Bill, *, is_full: bool = False) -> str:
    """Plain text, about fifteen lines of 80 columns; more where every finding is wanted."""
    lines = [verdict_line(bill)]
    if bill.verdict.violations or bill.ladder or bill.verdict.would_help:
        lines += _no_lines(bill)
    lines += [change_line(change) for change in bill.verdict.changes]
    lines += [memory_line(bill), time_line(bill), *money_lines(bill), energy_line(bill)]
    lines += [batch_line(bill), value_line(bill), basis_line(bill), *_finding_lines(bill, is_full=is_full)]
    return "\n".join(lines) + "\n"


def _no_lines(bill: Bill) -> list[str]:
    from preflight.report.refusal import changes_in_short, ladder_lines, violation_lines  # a yes does not pay for it

    helps = [folded("  or", f"{overrides}   (a yes: {changes_in_short(bill.verdict.would_help)})")
             for overrides in _help(bill)]  # fmt: skip
    return [*violation_lines(bill, _refused(bill)), *helps, *ladder_lines(bill)]


def verdict_line(bill: Bill) -> str:
    """The answer, what for, how long and how much; a machine that is not the declared one is said here."""
    plan, wall, cost = bill.plan, bill.estimate.wall.seconds, bill.estimate.cost.cost_usd
    word = _verdict_word(bill)
    time = UNKNOWN + " time" if wall is None else format_seconds(wall.mid)
    money = UNKNOWN + " cost" if cost is None else format_money(cost.mid, plan.budget.money)
    over = ", ".join(BUDGET_WORDS[violation.budget] for violation in bill.verdict.violations)
    line = folded(
        word, f"{plan.model.name} on {machine_words(plan.hw)}: {time}, {money}" + (f"; over: {over}" if over else "")
    )
    mismatch = machine_mismatch(bill)
    if mismatch is None:
        return line
    stops = bill.verdict.decision is Decision.wrong_machine
    return f"{line}\n{folded('', _with_fix(mismatch) if stops else mismatch.message)}"


def _verdict_word(bill: Bill) -> str:
    if bill.exit_code is ExitCode.CONFIG:
        return "NOT READY"  # a real run whose data or model is missing: the error below says which
    decision = bill.verdict.decision
    if decision is Decision.go_lowered and all(change.pin == RAISED_PIN for change in bill.verdict.changes):
        return "GO, CHANGED" + condition(bill)
    anyway = decision is Decision.go and bill.verdict.violations  # lowering.policy=off
    return DECISION_WORDS[decision] + (" ANYWAY" if anyway else "") + condition(bill)


def condition(bill: Bill) -> str:
    """What a yes still depends on: data or weights that are missing, or a machine that is not this one."""
    if bill.verdict.decision not in (Decision.go, Decision.go_lowered):
        return ""
    errors = (finding for finding in bill.verdict.findings if finding.severity is Severity.error)
    if any(error.exit_code == ExitCode.CONFIG for error in errors):
        return " IF READY"
    return " ON PAPER" if machine_mismatch(bill) is not None else ""


def machine_mismatch(bill: Bill) -> Finding | None:
    """The finding that this computer is not the machine of the bill."""
    return next((f for f in bill.verdict.findings if f.exit_code == ExitCode.WRONG_MACHINE), None)


def memory_line(bill: Bill) -> str:
    """What must fit, its band, and what it must fit into."""
    memory, hw = bill.estimate.memory, bill.plan.hw
    text = f"{bytes_with_band(memory.device)} per {rank_word(hw)}"
    if memory.usable_bytes is None or memory.card_bytes is None:
        return folded("memory", f"{text}; how much there is: {UNKNOWN}")
    usable, total = format_bytes(memory.usable_bytes).removesuffix(" GiB"), format_bytes(memory.card_bytes)
    return folded("memory", f"{text}; {usable} of {total} may be used")


def time_line(bill: Bill) -> str:
    """Wall time, the step, the speed."""
    step, trainer = bill.estimate.step, bill.plan.trainer
    step_words = UNKNOWN if step.seconds is None else format_seconds(step.seconds.mid)
    parts = [f"{trainer.n_steps:,} steps of {step_words}{_besides(bill)}"]
    if step.tokens_per_second is not None:
        parts.append(f"{significant(step.tokens_per_second.mid)} tok/s")
    parts.append(f"MFU {UNKNOWN}" if step.mfu is None else f"MFU {step.mfu:.0%}")
    return folded("time", f"{seconds_with_band(bill.estimate.wall.seconds)}: {', '.join(parts)}")


def _besides(bill: Bill) -> str:
    """What is paid for but trains nothing, when it is more than a twentieth."""
    terms = bill.estimate.wall.terms_seconds
    besides = sum(seconds for name, seconds in terms.items() if name != "steps")
    return f" + {format_seconds(besides)} other" if besides > NOTABLE_FRACTION * sum(terms.values()) else ""


def money_lines(bill: Bill) -> list[str]:
    """The price with its offer and date, and the other reading of it."""
    cost, money = bill.estimate.cost, bill.plan.budget.money
    rate = f"; {rate_words(money)}" if rate_words(money) else ""
    lines = [folded("money", f"{usd_with_band(cost.cost_usd, money)}; {cost.rates.basis}{rate}")]
    return [*lines, folded("", cost.alternative)] if cost.alternative else lines


def energy_line(bill: Bill) -> str:
    """Energy and what the grid emits for it; unknown watts can be given."""
    cost = bill.estimate.cost
    is_missing = cost.rates.watts is None and not bill.is_resumed
    hint = "; give hw.watts= (one node in training)" if is_missing else ""
    return folded("energy", kwh_with_band(cost.energy_kwh) + hint + co2_words(cost))


def batch_line(bill: Bill) -> str:
    """How the global batch is made up, and how large a pass could be."""
    trainer, hw = bill.plan.trainer, bill.plan.hw
    ranks = f" x {hw.world_size} {rank_word(hw, hw.world_size)}" if hw.world_size > 1 else ""
    passes = "1 pass" if trainer.grad_accum_steps == 1 else f"{trainer.grad_accum_steps} passes"
    text = f"{trainer.micro_batch_size} x {trainer.sequence_length} tokens x {passes}{ranks}"
    text += f" = {trainer.tokens_per_step:,} a step"
    if bill.faster is not None:
        size, saved = bill.faster.plan.trainer.micro_batch_size, bill.faster.saved_fraction
        return folded("batch", f"{text}; {size} fits and saves {saved:.0%} time (lowering.raise_batch=true)")
    largest = bill.largest_micro_batch
    return folded("batch", text if largest is None else f"{text}; up to {largest} fits")


def value_line(bill: Bill) -> str:
    """Is it worth it."""
    value, trainer = bill.estimate.value, bill.plan.trainer
    text = f"{format_count(trainer.total_tokens)} tokens"
    if value.n_tuned_params is None:
        text += f", {significant(value.tokens_per_param)} a parameter (optimal: ~20)"
    else:
        text += f" for {tuned_words(value.n_tuned_params, bill.estimate.n_params)}"
    if value.n_epochs is not None and value.n_epochs > 1:
        text += f", {value.n_epochs:.3g} epochs"
    if value.n_tuned_params is not None:
        return folded("value", f"{text}; fine-tuning, whose loss no scaling law tells")
    if value.expected_loss is None:
        return folded("value", text)
    loss = f"loss ~{value.expected_loss.mid:.2f}"
    before = value.expected_loss_at_three_quarters
    return folded("value", f"{text}; {loss}" + (f", {before:.2f} at 3/4" if before is not None else ""))


def basis_line(bill: Bill) -> str:
    """Formulas alone, or what earlier runs measured; then both."""
    calibration, step = bill.plan.calibration, bill.estimate.step
    if calibration.n_runs == 0 or not calibration.factors:
        alone = "formulas and published measurements; uncalibrated: no run like this yet"
        return folded("basis", alone + _measured_words(bill))
    runs = "1 run" if calibration.n_runs == 1 else f"{calibration.n_runs} runs"
    text = f"calibrated by {runs} in the ledger ({next(iter(calibration.factors.values())).scope})"
    if step.raw_seconds is not None and step.seconds is not None and not _is_close(step.raw_seconds, step.seconds.mid):
        text += f"; the formula alone says {format_seconds(step.raw_seconds)} a step"
    return folded("basis", text + _measured_words(bill))


def _measured_words(bill: Bill) -> str:
    """What action=calibrate replaced, or a disk that was assumed where it matters."""
    hw, wall = bill.plan.hw, bill.estimate.wall
    measured = "" if hw.measured is None else f"; rates measured by action=calibrate on {hw.measured.as_of}"
    on_disk = sum(wall.terms_seconds.get(name, 0.0) for name in ("checkpoints", "data_wait"))
    is_notable = on_disk > NOTABLE_FRACTION * sum(wall.terms_seconds.values()) > 0
    if hw.disk_bytes_per_second is None and is_notable:
        measured += f"; disk taken as {DISK_BYTES_PER_SECOND / 1e6:g} MB/s (action=calibrate measures it)"
    return measured


def _is_close(one: float, other: float) -> bool:
    return abs(one - other) <= 0.01 * abs(other)


def change_line(change: Change) -> str:
    """`old -> new`, why, and how to protect the old value."""
    return folded(
        "changed", f"{change.field} {change.old} -> {change.new}: {change.reason}. To keep {change.old}: {change.pin}"
    )


def _refused(bill: Bill) -> tuple[Violation, ...]:
    """With lowering.policy=off they are warnings."""
    return bill.verdict.violations if bill.plan.lowering.policy is not PolicyChoice.off else ()


def _help(bill: Bill) -> list[str]:
    """What policy or consent forbids, unless the fixes above say the same."""
    helps = bill.verdict.would_help
    overrides = " ".join(change.pin for change in helps)
    is_said = any(violation.fix.startswith(overrides) for violation in bill.verdict.violations)
    return [overrides] if helps and not is_said else []


def _finding_lines(bill: Bill, *, is_full: bool) -> list[str]:
    """Errors, warnings and what was decided for the user, three at most; the rest is in report=full."""
    mismatch = machine_mismatch(bill)
    is_no = bill.verdict.decision is Decision.refuse and not is_full  # whose cures come first
    matters = {Severity.error} if is_no else {Severity.error, Severity.warning}
    findings = [f for f in bill.verdict.findings if f.severity in matters and f is not mismatch]
    lines = [*(finding_line(finding) for finding in findings), *decided_lines(bill)]
    n_more = len(lines) - N_FINDINGS
    return lines if n_more <= 0 or is_full else [*lines[:N_FINDINGS], folded("", f"{n_more} more with report=full")]


def decided_lines(bill: Bill) -> list[str]:
    """What `resolve` decided and the user should hear of stands behind a colon: `recipe: 10 instead of 12, ...`."""
    reasons = {path: origin.partition(":")[2].strip() for path, origin in bill.plan.provenance.items()}
    return [folded("note", f"{path}: {reason}") for path, reason in reasons.items() if reason]


def finding_line(finding: Finding) -> str:
    """What is the matter and the cure."""
    label = {Severity.error: "error", Severity.warning: "warning", Severity.info: "note"}[finding.severity]
    return folded(label, _with_fix(finding))


def _with_fix(finding: Finding) -> str:
    message = finding.message.rstrip(".")
    return f"{message}. Fix: {finding.fix}" if finding.fix else message
