"""What the plan rests on, wherever it will run: the data, the model's trainer, the card's name and its price."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date

from conf.choices import DataKind
from preflight.checks.interval import judge_interval
from preflight.dataset import prepare_command
from preflight.errors import ExitCode
from preflight.estimate import Estimate
from preflight.plan import RunPlan
from preflight.tokenizer_file import TOKENIZER_NAME
from preflight.units import SECONDS_PER_HOUR, format_count
from preflight.verdict.judge import Finding, Severity

PREPARED_AT_LAUNCH = (DataKind.stdlib, DataKind.text)  # seconds, once
# Up to about four passes over the data are worth as much as fresh text, sixteen still something
# (Muennighoff et al., "Scaling data-constrained language models", 2023).
N_EPOCHS_GOOD = 4
N_EPOCHS_USEFUL = 16
STALE_DAYS = 90
NO_ECC_HOURS = 24.0  # long enough for a flipped bit to matter


def judge_facts(plan: RunPlan, needs: Estimate, *, is_here: bool) -> Iterator[Finding]:
    """`is_here`: this computer is the one that will train, so what is missing here stops the run."""
    yield from _prepared(plan, is_here=is_here)
    yield from _epochs(plan)
    yield from _custom_card(plan)
    yield from _price_age(plan)
    yield from _no_ecc(plan, needs)
    yield from judge_interval(plan, needs)


def _prepared(plan: RunPlan, *, is_here: bool) -> Iterator[Finding]:
    data = plan.data
    if data.prepared or data.kind in PREPARED_AT_LAUNCH:
        return
    if data.kind is DataKind.bin:
        command = _to_token_files(plan)
    else:
        command = prepare_command(data.kind, data.dir, plan.model.tokenizer, data.val_fraction)
    if is_here:
        yield Finding(
            check="data.prepared",
            severity=Severity.error,
            message=f"data={data.kind.name} is not prepared: no train.bin and val.bin in {data.dir}",
            fix=command,
            exit_code=ExitCode.CONFIG,
        )
    else:
        message = f"data={data.kind.name} must be ready on the machine that trains"
        yield Finding(check="data.prepared", severity=Severity.warning, message=message, fix=command)


def _to_token_files(plan: RunPlan) -> str:
    """A text is read with the tokenizer of the model's folder; where that is not, it has to be named."""
    own = None if plan.model.path is None else os.path.join(plan.model.path, TOKENIZER_NAME)
    has_own = own is not None and os.path.isfile(own)
    text = "data=text data.path=FILE_OR_FOLDER" + ("" if has_own else f" data.tokenizer={TOKENIZER_NAME}")
    read = f" (read with {own})" if has_own else ""
    dataset = f"python scripts/prepare_data.py hf --path DATASET --tokenizer {own if has_own else TOKENIZER_NAME}"
    return f"{text}{read}; {dataset}; or data=bin data.path=FOLDER with train.bin and val.bin"


def _epochs(plan: RunPlan) -> Iterator[Finding]:
    data, total = plan.data, plan.trainer.total_tokens
    at_most = int((data.n_source_bytes or 0) * (1.0 - data.val_fraction))  # a token is at least a byte
    n_tokens = data.n_train_tokens or at_most
    if not n_tokens or total <= N_EPOCHS_GOOD * n_tokens:
        return
    severity = Severity.warning if total > N_EPOCHS_USEFUL * n_tokens else Severity.info
    at_least = "" if data.n_train_tokens else "at least "
    message = (
        f"{format_count(total)} tokens are {at_least}{total / n_tokens:,.0f} passes over "
        f"the {format_count(n_tokens)} of {data.name}; after about {N_EPOCHS_GOOD} a pass teaches less than fresh text"
    )
    n_steps = max(1, N_EPOCHS_GOOD * n_tokens // plan.trainer.tokens_per_step)
    yield Finding(check="data.epochs", severity=severity, message=message, fix=f"trainer.n_steps={n_steps}")


def _custom_card(plan: RunPlan) -> Iterator[Finding]:
    if plan.hw.card.name == "custom":
        message = "the card's numbers are yours (hw.custom.*), so the bill is as good as they are"
        yield Finding(check="cards.custom", severity=Severity.info, message=message, fix="")


def _price_age(plan: RunPlan) -> Iterator[Finding]:
    """Only where a price decides."""
    offer = plan.hw.offer
    if plan.budget.max_cost_usd is None or offer.owned or offer.usd_per_hour is None or not offer.as_of:
        return
    n_days = (date.fromisoformat(plan.created_at[:10]) - date.fromisoformat(offer.as_of)).days
    if n_days > STALE_DAYS:
        message = f"the price of {offer.provider} ({offer.instance}) is {n_days} days old ({offer.as_of})"
        fix = "hw.price_usd_per_hour= with today's, or python scripts/refresh_prices.py"
        yield Finding(check="money.price_age", severity=Severity.warning, message=message, fix=fix)


def _no_ecc(plan: RunPlan, needs: Estimate) -> Iterator[Finding]:
    wall = needs.wall.seconds
    if plan.hw.card.ecc is False and wall is not None and wall.mid > NO_ECC_HOURS * SECONDS_PER_HOUR:
        message = f"{plan.hw.card.label} has no ECC memory and the run is long: a flipped bit can spoil it unseen"
        fix = "trainer.keep_checkpoints=4, so that one from before it is there"
        yield Finding(check="cards.ecc", severity=Severity.info, message=message, fix=fix)
