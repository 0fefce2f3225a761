"""Which workload does a row of a table of public memory measurements describe, and what was measured?

A row that lacks what the sums need, or whose code they do not describe, is skipped with the reason. Where a field is
empty, a framework's documented default stands in (`FRAMEWORKS`, `_attention`, `_optimizer_working_bytes`); what the
notes say of the code is read by its words. Nothing depends on a row, a source or a repository.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from conf.choices import Family, Tokenizer
from preflight import catalog
from preflight.hw_plan import Card
from preflight.memory.workload import AUTOCAST, COMPILED_AUTOCAST, COMPILED_FULL, FULL, HALF_BYTES, Numerics, Workload
from preflight.params import count_params
from preflight.plan import ModelPlan, RunPlan
from preflight.units import GIB
from scripts.accuracy_plan import nameless_card, plan_of_run
from scripts.accuracy_rows import Skip, usable_rows

# Everything in 16 bit: weights, moments, loss (2 + 2 bytes a logit, then 2 + 2 + 2).
PURE_HALF = Numerics(HALF_BYTES, 2 * HALF_BYTES, HALF_BYTES, HALF_BYTES, False, 4, 6)
COMPILED_PURE_HALF = PURE_HALF._replace(loss_forward_bytes_per_logit=2, loss_backward_bytes_per_logit=2)

ADAPTERS = re.compile(
    r"lora|adapter|adalora|loha|lokr|vera|oft|miss|ln_tuning|prefix|prompt|ia3|fourier|shira|trainable|lisa|tuning",
    re.IGNORECASE,
)
QUANTISED = re.compile(r"nf4|int4|awq|gptq|8bit weights", re.IGNORECASE)


class Framework(NamedTuple):
    """What a code base does unless a row says otherwise. None: its users choose, so a row must say."""

    compiles: bool | None = None
    optimizer: str | None = None
    precision: str | None = None
    attention: str = "sdpa"
    keeps_logits: bool = False  # a variable of the loop holds them: `logits, loss = model(...)`, `outputs = model(...)`
    loss_inside_model: bool = True  # and so inside torch.compile(model)
    dropout: float = 0.0
    writes_gelu_out: bool = False  # in elementary operators, which autograd keeps one by one
    caches_keys: bool = False  # stacked keys and values among the outputs
    upcasts_logits: bool = False  # to fp32 before the loss


FRAMEWORKS = {
    # train.py of karpathy/nanoGPT: dtype = bfloat16 or float16 by autocast, compile = True, fused AdamW
    "nanoGPT": Framework(True, "AdamW fused", "bf16-autocast", keeps_logits=True),
    # A hand-written loop: logits = model(x), then F.cross_entropy
    "PyTorch": Framework(False, loss_inside_model=False),
    # Before 4.0 (modeling_gpt2.py): gelu_new in Python, `presents` among the outputs, GPT2Config's dropout
    "transformers 2": Framework(
        False, "AdamW", "fp32", "eager", keeps_logits=True, dropout=0.1, writes_gelu_out=True, caches_keys=True
    ),
    "transformers 3": Framework(
        False, "AdamW", "fp32", "eager", keeps_logits=True, dropout=0.1, writes_gelu_out=True, caches_keys=True
    ),
    "ms-swift": Framework(False, "AdamW fused", upcasts_logits=True),  # transformers' models and Trainer
    "torchtune": Framework(upcasts_logits=True, loss_inside_model=False),  # logits.float(), compiled apart
    "litgpt": Framework(False, "AdamW"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMemory:
    """One usable row."""

    id: str
    source: str  # one code base
    plan: RunPlan
    work: Workload
    kind: str  # allocated | reserved | device | ran | oom
    measured_bytes: float | None  # None: it ran, or went out of memory
    is_nanogpt_like: bool


def read_rows(path: Path) -> tuple[list[MeasuredMemory], dict[str, int]]:
    """The usable rows, and how many were skipped for which reason."""
    return usable_rows(path, measured_memory)


def measured_memory(row: Mapping[str, str]) -> MeasuredMemory:
    """Raises Skip."""
    _refuse_what_is_no_training_peak(row)
    _refuse_what_is_not_modelled(row)
    framework = _framework(row)
    model = _model(row, framework)
    sequence_length, n_sequences = _needed(row, "seq_len", "micro_batch")
    kind = _kind(row)
    card = _card(row, must_be_known=kind in ("ran", "oom"))
    n_gpus = int(_number(row["n_gpus"]) or 1)
    plan = plan_of_run(model, card, n_gpus, n_sequences, sequence_length, compiled=_compiled(row, framework))
    work = _workload(row, plan, framework)
    measured_bytes = (_number(row["peak_mem_gib"]) or 0) * GIB or None
    if measured_bytes is not None and measured_bytes < states_bytes(work):
        raise Skip("contradicts itself: less than weights, gradients and the stated optimizer's states")
    return MeasuredMemory(
        id=row["id"],
        source=source_of(row),
        plan=plan,
        work=work,
        kind=kind,
        measured_bytes=measured_bytes,
        is_nanogpt_like=model.family is Family.gpt2 and row["parallel"] in ("single", "ddp", ""),
    )


def states_bytes(work: Workload) -> int:
    """What full-parameter training keeps at the end of every backward pass."""
    n_params = count_params(work.model, work.sequence_length).total
    return n_params * (2 * work.numerics.weight + work.numerics.optimizer)


def source_of(row: Mapping[str, str]) -> str:
    """The code base: owner/name, or the first words of the source."""
    found = re.search(r"([\w.-]+/[\w.-]+)", row["source"])
    return found.group(1) if found else row["source"].split(",")[0][:40]


def _refuse_what_is_no_training_peak(row: Mapping[str, str]) -> None:
    if row["measured_kind"] in ("kernel_only", "not_a_peak"):
        raise Skip("not a training peak")
    if row["model"].lower().startswith("bert"):
        raise Skip("not modelled: encoder models")


def _refuse_what_is_not_modelled(row: Mapping[str, str]) -> None:
    words = f"{row['model']} {row['note']}"
    if QUANTISED.search(f"{row['precision']} {words}"):
        raise Skip("not modelled: quantised weights")
    if ADAPTERS.search(words):
        raise Skip("not modelled: adapters")
    if "value embeddings" in words or "modded" in row["model"]:
        raise Skip("not modelled: value embeddings and their relatives")
    if re.search(r"fp8|fp4", row["precision"], re.IGNORECASE):
        raise Skip("not modelled: 8-bit and 4-bit arithmetic")
    if row["parallel"] not in ("single", "ddp", ""):
        raise Skip("not modelled: sharded states")
    if re.search(r"\btp ?\d|offload", words):
        raise Skip("not modelled: tensor parallelism, offload")
    if "DeepSpeed" in row["framework"]:
        raise Skip("not modelled: DeepSpeed's states")
    if row["optimizer"] and (not row["optimizer"].startswith("AdamW") or "8bit" in row["optimizer"]):
        raise Skip("not modelled: optimizers other than AdamW")
    if row["activation_ckpt"] == "selective":
        raise Skip("not modelled: selective checkpointing")


def _framework(row: Mapping[str, str]) -> Framework:
    for name, framework in FRAMEWORKS.items():
        if row["framework"].startswith(name):
            return framework
    return Framework()


def _number(text: str) -> float | None:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*", text)
    return float(found.group(1)) if found else None


def _needed(row: Mapping[str, str], *names: str) -> list[int]:
    values = [_number(row[name]) for name in names]
    missing = [name for name, value in zip(names, values, strict=True) if not value]
    if missing:
        raise Skip(f"not stated: {missing[0]}")
    return [int(value or 0) for value in values]


def _kind(row: Mapping[str, str]) -> str:
    """Where the table does not say what was read, it is taken for what the allocator had reserved."""
    return {"active": "allocated", "unstated": "reserved"}.get(row["measured_kind"], row["measured_kind"])


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
    """Family, tying and biases: of those a row leaves open, the ones whose parameter count is nearest the stated."""
    n_layer, n_head, n_embd = _needed(row, "n_layer", "n_head", "d_model")
    d_ff = int(_number(row["d_ff"]) or 4 * n_embd)
    vocab_size = int(_number(row["vocab"]) or 0)
    if not vocab_size:
        raise Skip("not stated: vocab")
    said = re.search(r"dropout (\d\.\d+)", row["note"])
    shape = ModelPlan(
        name=row["model"], family=Family.gpt2, n_layer=n_layer, n_head=n_head,
        n_kv_head=int(_number(row["n_kv_head"]) or n_head), n_embd=n_embd, d_ff=d_ff, vocab_size=vocab_size,
        tokenizer=Tokenizer.other, tied_head=True, bias=False,
        dropout=float(said.group(1)) if said else framework.dropout,
    )  # fmt: skip
    stated = _number(row["params"])
    candidates = [
        replace(shape, family=family, tied_head=tied)
        for family in ([Family.gpt2] if d_ff == 4 * n_embd else [Family.llama, Family.gpt2])
        for tied in (True, False)
    ]
    if stated is None:
        return candidates[0]
    length = int(_number(row["seq_len"]) or 0)
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


def _said(row: Mapping[str, str], name: str, default: str | None) -> str:
    if not row[name] and default is None:
        raise Skip(f"not stated: {name}")
    return row[name] or default or ""


def _workload(row: Mapping[str, str], plan: RunPlan, framework: Framework) -> Workload:
    compiled, n_gpus = plan.trainer.compile, plan.hw.world_size
    precision = _said(row, "precision", framework.precision)
    numerics = _numerics(precision, compiled=compiled and framework.loss_inside_model)
    if framework.upcasts_logits and not numerics.casts_weights:
        numerics = numerics._replace(loss_forward_bytes_per_logit=10, loss_backward_bytes_per_logit=12)
    optimizer = _said(row, "optimizer", framework.optimizer)
    writes_norms_out = "hand-written LayerNorm" in row["note"]
    return Workload(
        model=plan.model,
        n_sequences=plan.trainer.micro_batch_size,
        sequence_length=plan.trainer.sequence_length,
        numerics=numerics,
        recomputes_blocks=row["activation_ckpt"] == "full",
        keeps_gradients=n_gpus > 1 or bool(re.search(r"grad(ient)? accum|gradients persist", row["note"])),
        has_buckets=False,
        mask_bytes=1,
        stores_attention_matrix=_said(row, "attention", framework.attention) == "eager",
        keeps_logits=framework.keeps_logits,
        copies_buckets=n_gpus > 1,  # DistributedDataParallel's default
        optimizer_working_bytes=0 if "fused" in optimizer else numerics.weight,
        norm_extra_bytes=2 * numerics.residual if writes_norms_out else 0,  # x - mean, and before the scale
        n_extra_wide=3 if writes_norms_out or framework.writes_gelu_out else 0,  # tanh's GELU: x / 2, tanh, 1 + tanh
        n_extra_narrow=2 if framework.caches_keys else 0,
        expandable_segments="expandable segments" in row["note"],
    )


def _numerics(precision: str, *, compiled: bool) -> Numerics:
    if "autocast" in precision or "amp" in precision or "mixed" in precision:
        return COMPILED_AUTOCAST if compiled else AUTOCAST
    if precision.startswith(("bf16", "fp16")):
        return COMPILED_PURE_HALF if compiled else PURE_HALF
    if precision.startswith(("fp32", "tf32")):
        return COMPILED_FULL if compiled else FULL
    raise Skip("not stated: precision")
