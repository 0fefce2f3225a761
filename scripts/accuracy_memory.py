"""Which workload does a row of a table of public memory measurements describe, and what was measured?

A row that lacks what the sums need, or whose code they do not describe, is skipped with the reason. Where a field is
empty, a framework's documented default stands in (`memory_frameworks`); what the notes say of the code is read by its
words. Nothing depends on a row, a source or a repository.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from conf.choices import Activation, Family, Norm, Positions, Tokenizer
from preflight import catalog
from preflight.hw_plan import Card
from preflight.memory.states import states_of
from preflight.memory.workload import Workload
from preflight.params import count_params
from preflight.plan import ModelPlan, RunPlan
from preflight.units import GIB, MIB
from scripts.accuracy_plan import nameless_card, plan_of_run
from scripts.accuracy_rows import Skip, usable_rows
from scripts.memory_frameworks import Framework, framework_of
from scripts.memory_workload import number, workload_of_row

OTHER_TUNING = re.compile(
    r"adalora|loha|lokr|\bvera\b|\boft\b|\bmiss\b|ln_tuning|prefix|prompt|ia3|fourier|shira|lisa|dora|adapter|tuner",
    re.IGNORECASE,
)
NANOGPT_LIKE = ("nanoGPT", "build-nanogpt", "autoresearch", "PyTorch")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMemory:
    """One usable row."""

    id: str
    source: str  # one code base
    plan: RunPlan
    work: Workload
    kind: str  # allocated | reserved | device | unstated | ran | oom
    measured_bytes: float | None  # None: it ran, or went out of memory
    is_nanogpt_like: bool


def read_rows(path: Path) -> tuple[list[MeasuredMemory], dict[str, int]]:
    """The usable rows, and how many were skipped for which reason."""
    return usable_rows(path, measured_memory)


def measured_memory(row: Mapping[str, str]) -> MeasuredMemory:
    """Raises Skip."""
    _refuse_what_is_no_training_peak(row)
    _refuse_what_is_not_modelled(row)
    framework = framework_of(row["framework"])
    model = _model(row, framework)
    sequence_length, n_sequences = _needed(row, "seq_len", "micro_batch")
    kind = _kind(row)
    card = _card(row, must_be_known=kind in ("ran", "oom"))
    n_gpus = int(number(row["n_gpus"]) or 1)
    plan = plan_of_run(model, card, n_gpus, n_sequences, sequence_length, compiled=_compiled(row, framework))
    work = workload_of_row(row, plan, framework)
    measured_bytes = (number(row["peak_mem_gib"]) or 0) * GIB or None
    if measured_bytes is not None and measured_bytes < states_bytes(work):
        raise Skip("contradicts itself: less than weights, gradients and the stated optimizer's states")
    return MeasuredMemory(
        id=row["id"],
        source=source_of(row),
        plan=plan,
        work=work,
        kind=kind,
        measured_bytes=measured_bytes,
        is_nanogpt_like=row["framework"].startswith(NANOGPT_LIKE),
    )


def states_bytes(work: Workload) -> int:
    """What training keeps at the end of every backward pass."""
    states = states_of(work)
    return states.weights + states.frozen_weights + states.gradients + states.optimizer


def source_of(row: Mapping[str, str]) -> str:
    """The code base: owner/name, or the first words of the source."""
    found = re.search(r"([\w.-]+/[\w.-]+)", row["source"])
    return found.group(1) if found else row["source"].split(",")[0][:40]


def _refuse_what_is_no_training_peak(row: Mapping[str, str]) -> None:
    if row["measured_kind"] in ("kernel_only", "not_a_peak"):
        raise Skip("not a training peak")
    if row["model"].lower().startswith("bert"):
        raise Skip("not modelled: encoder models")
    if "run includes eval with batch" in row["note"]:
        raise Skip("not modelled: text that is generated for evaluation, which decides the peak")


def _refuse_what_is_not_modelled(row: Mapping[str, str]) -> None:
    words = f"{row['model']} {row['note']}"
    if OTHER_TUNING.search(re.sub(r"Q?-?LoRA|adapters fp32", "", words)):
        raise Skip("not modelled: adapters other than LoRA")
    if "modded" in row["model"] or "heavily modified" in words:
        raise Skip("not modelled: heavily modified architectures")
    if re.search(r"fp8|fp4|float8", row["precision"], re.IGNORECASE):
        raise Skip("not modelled: 8-bit and 4-bit arithmetic")
    if re.search(r"\btp ?\d|\bTP \d|\bCP \d|\bPP \d|activation offloading|CPU offload with", words):
        raise Skip("not modelled: tensor, context or pipeline parallelism, offloaded activations")
    if "thunder" in row["framework"].lower():
        raise Skip("not modelled: compilers other than Inductor")


def _needed(row: Mapping[str, str], *names: str) -> list[int]:
    values = [number(row[name]) for name in names]
    missing = [name for name, value in zip(names, values, strict=True) if not value]
    if missing:
        raise Skip(f"not stated: {missing[0]}")
    return [int(value or 0) for value in values]


def _kind(row: Mapping[str, str]) -> str:
    """What the table says was read; where its note quotes several figures, the one that is the peak."""
    peak = number(row["peak_mem_gib"])
    if peak:
        for name, mib in re.findall(r"(active|allocated|reserved):? (\d+) MiB", row["note"]):
            if abs(int(mib) * MIB / GIB - peak) < 0.002:
                return "reserved" if name == "reserved" else "allocated"
    return {"active": "allocated"}.get(row["measured_kind"], row["measured_kind"])


def _card(row: Mapping[str, str], *, must_be_known: bool) -> Card:
    """From the catalog; where a row states its total memory, that counts."""
    name = re.sub(r"\(.*\)", "", row["gpu"]).strip()
    try:
        card = catalog.find_card(name)
    except KeyError:
        card = nameless_card(row["gpu"])
    stated = re.search(r"([\d.]+) GiB\)", row["gpu"])
    if stated:
        card = replace(card, memory_bytes=int(float(stated.group(1)) * GIB))
    if must_be_known and card.memory_bytes is None:
        raise Skip("not stated: the card's memory")
    return card


def _model(row: Mapping[str, str], framework: Framework) -> ModelPlan:
    """Parts and tying: of those a row leaves open, the ones whose parameter count is nearest the stated."""
    n_layer, n_head, n_embd = _needed(row, "n_layer", "n_head", "d_model")
    d_ff = int(number(row["d_ff"]) or 4 * n_embd)
    vocab_size = int(number(row["vocab"]) or 0)
    if not vocab_size:
        raise Skip("not stated: vocab")
    dropout = re.search(r"dropout (\d\.\d+)", row["note"])
    shape = ModelPlan(
        name=row["model"], family=Family.gpt2, n_layer=n_layer, n_head=n_head,
        n_kv_head=int(number(row["n_kv_head"]) or n_head), n_embd=n_embd, d_ff=d_ff, vocab_size=vocab_size,
        tokenizer=Tokenizer.other, tied_head=True, bias=False,
        dropout=float(dropout.group(1)) if dropout else framework.dropout,
    )  # fmt: skip
    llama = replace(
        shape, family=Family.llama, norm=Norm.rmsnorm, positions=Positions.rotary, activation=Activation.swiglu
    )
    if framework.value_embeddings:  # its MLP squares a ReLU, its norms have no weights
        return replace(llama, activation=Activation.relu2, tied_head=False)
    rotary = replace(shape, positions=Positions.rotary)  # GPT-NeoX, Falcon, Phi
    kinds = [shape, rotary] if d_ff == 4 * n_embd else [llama, shape, rotary]
    candidates = [
        replace(kind, tied_head=tied, head_dim=width) for kind in kinds for tied in (True, False) for width in (0, 256)
    ]
    stated = number(row["params"])
    if stated is None:
        return candidates[0]
    length = int(number(row["seq_len"]) or 0)
    best = min(candidates, key=lambda one: abs(count_params(one, length).total - stated))
    if abs(count_params(best, length).total / stated - 1) > 0.1:
        raise Skip("not modelled: an architecture with another parameter count")
    return best


def _compiled(row: Mapping[str, str], framework: Framework) -> bool:
    if row["compile"]:
        return row["compile"] == "1"
    if framework.compiles is None:
        raise Skip("not stated: compile")
    return framework.compiles
