"""Which plan does a row of a table of public training runs describe, and how long did its step really take?

A row that lacks what the sums need, or whose run the plan cannot describe, is skipped with the reason. What is taken
where a field is empty is a framework's documented default: 4 x width for the MLP, GPT-2's vocabulary, eager code,
AdamW, one key/value head per head unless the stated parameter count says fewer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from conf.choices import Activation, Family, Norm, Positions, Tokenizer
from preflight import catalog
from preflight.hw_plan import Card
from preflight.params import count_params
from preflight.plan import Checkpointing, ModelPlan, Precision, RunPlan
from preflight.step_time.implementation import Implementation
from scripts.accuracy_plan import plan_of_run
from scripts.accuracy_rows import Skip, usable_rows
from scripts.throughput_codes import Code, code_of

GPT2_VOCAB_SIZE = 50304  # 50,257, padded: Megatron, llm-foundry and nanoGPT all do; who does not says 50,257
SELECTIVE_RECOMPUTED_FRACTION = 0.15  # of the forward pass: attention or a few operators (arXiv:2205.05198)
# Scores of 2 bytes through two matmuls and softmax, and through dropout: 13 forward, 17 backward
FUSED_SOFTMAX_SCORE_BYTES, FUSED_SOFTMAX_DROPOUT_BYTES = 20.0, 10.0
# Before torch 2.2, scaled_dot_product_attention and its contemporaries were FlashAttention's first version, which the
# second one's paper (arXiv:2307.08691) doubles.
SECOND_FLASH_TORCH, FIRST_FLASH_SLOWDOWN = (2, 2), 2.0
EAGER_SCORE_BYTES, EAGER_DROPOUT_BYTES = 42.0, 18.0  # scale, mask, softmax, dropout one by one, some of them in fp32
# Optimizers whose own arithmetic is a large part of the step; AdamW's traffic does not stand for them.
OTHER_OPTIMIZERS = ("SOAP", "Shampoo", "Muon not distributed")
PRECISIONS = (("bf16", Precision.bf16), ("fp16", Precision.fp16), ("fp32", Precision.fp32), ("tf32", Precision.tf32))
SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One usable row."""

    id: str
    source: str  # one code base
    group: str  # runs that one calibration run speaks for: code, card, length, checkpointing
    plan: RunPlan
    code: Implementation
    seconds: float  # measured, one optimizer step
    n_params: float  # as the row states them, else counted
    facts: Code
    is_nanogpt_like: bool  # compiled or hand-fused, one replica a card, below 2B


def read_rows(path: Path) -> tuple[list[MeasuredStep], dict[str, int]]:
    """The usable rows, and how many were skipped for which reason."""
    return usable_rows(path, measured_step)


def measured_step(row: Mapping[str, str]) -> MeasuredStep:
    """Raises Skip."""
    _refuse_what_no_plan_describes(row)
    model = _model(row)
    card = _card(row["gpu"])
    source = source_of(row)
    facts = code_of(source, row)
    plan = _plan(row, replace(model, dropout=facts.dropout), card, is_pure_half=facts.is_pure_half)
    trainer = plan.trainer
    code = _implementation(row, facts)
    n_params = _number(row["params"]) or float(count_params(model, trainer.sequence_length).total)
    return MeasuredStep(
        id=row["id"],
        source=source,
        group=f"{source} | {card.name} | {trainer.sequence_length} | {row['activation_ckpt']}",
        plan=plan,
        code=code,
        seconds=_seconds(row, trainer.tokens_per_step),
        n_params=n_params,
        facts=facts,
        is_nanogpt_like=trainer.compile and not code.sharded and n_params < 2e9,
    )


def source_of(row: Mapping[str, str]) -> str:
    """The code base: owner/name of a GitHub address, otherwise the first words of the source."""
    found = re.search(r"github\.com/([\w.-]+/[\w.-]+)", row["source"])
    return found.group(1) if found else row["source"].split(" (")[0][:60]


def _refuse_what_no_plan_describes(row: Mapping[str, str]) -> None:
    note, precision = row["note"], row["precision"]
    if "NON-VANILLA" in note or "NOT GPT" in note or row["model"].startswith(("BERT", "Transformer-XL")):
        raise Skip("another architecture")
    if "fp8" in precision:
        raise Skip("fp8 is not modelled")
    for name in OTHER_OPTIMIZERS:
        if name in note:
            raise Skip(f"optimizer with arithmetic of its own: {name}")
    if "offload" in row["parallel"] or "CP" in row["parallel"]:
        raise Skip("offload and context parallelism are not modelled")


def _number(text: str) -> float | None:
    """`124M`, `8.03B`, `1315950592`; None: empty or not a number."""
    found = re.fullmatch(r"\s*([\d.]+)\s*([KMBT]?)\s*", text)
    return float(found.group(1)) * SUFFIXES.get(found.group(2), 1.0) if found else None


def _needed(row: Mapping[str, str], *names: str) -> list[int]:
    values = [_number(row[name]) for name in names]
    missing = [name for name, value in zip(names, values, strict=True) if not value]
    if missing:
        raise Skip(f"not stated: {missing[0]}")
    return [int(value or 0) for value in values]


def _card(name: str) -> Card:
    try:
        return catalog.find_card(re.sub(r"\(.*\)", "", name))
    except KeyError as error:
        raise Skip(f"card not in the catalog: {name}") from error


def _model(row: Mapping[str, str]) -> ModelPlan:
    n_layer, n_embd = _needed(row, "n_layer", "d_model")
    d_ff = int(_number(row["d_ff"]) or 4 * n_embd)
    is_llama = "llama" in row["model"].lower() or d_ff != 4 * n_embd
    n_head = int(_number(row["n_head"]) or max(1, n_embd // 64))
    model = ModelPlan(
        name=row["model"],
        family=Family.llama if is_llama else Family.gpt2,
        n_layer=n_layer,
        n_head=n_head,
        n_kv_head=n_head,
        n_embd=n_embd,
        d_ff=d_ff,
        vocab_size=_vocab_size(row),
        tokenizer=Tokenizer.other,
        tied_head=not is_llama,
        bias=False,
        dropout=0.0,
        norm=Norm.rmsnorm if is_llama else Norm.layernorm,
        positions=Positions.rotary if is_llama else Positions.learned,
        activation=Activation.swiglu if is_llama else Activation.gelu,
    )
    stated = _number(row["params"])
    return _nearest(model, stated) if stated else model


def _vocab_size(row: Mapping[str, str]) -> int:
    """As stated, or GPT-2's; Megatron rounds it up (--make-vocab-size-divisible-by, 128)."""
    vocab_size = int(_number(row["vocab"]) or GPT2_VOCAB_SIZE)
    return -(-vocab_size // 128) * 128 if "Megatron" in row["framework"] else vocab_size


def _nearest(model: ModelPlan, stated_params: float) -> ModelPlan:
    """Tied or not, and with as many key/value heads, as comes nearest to the stated parameter count."""
    is_llama = model.family is Family.llama
    n_kv_heads = [n for n in range(model.n_head, 0, -1) if model.n_head % n == 0] if is_llama else [model.n_head]
    candidates = [
        replace(model, n_kv_head=n, tied_head=tied)
        for tied in (model.tied_head, not model.tied_head)
        for n in n_kv_heads
    ]
    return min(candidates, key=lambda one: abs(count_params(one, 0).total - stated_params))


def _plan(row: Mapping[str, str], model: ModelPlan, card: Card, *, is_pure_half: bool) -> RunPlan:
    sequence_length, micro_batch_size, n_gpus = _needed(row, "seq_len", "micro_batch", "n_gpus")
    precision = next((kind for word, kind in PRECISIONS if word in row["precision"]), None)
    if precision is None:
        raise Skip("not stated: precision")
    if is_pure_half and precision is Precision.bf16:
        precision = Precision.bf16_pure
    n_nodes = int(_number(row["n_nodes"]) or 1)
    compiled = row["compile"] not in ("no", "")
    plan = plan_of_run(model, card, n_gpus // n_nodes, micro_batch_size, sequence_length, compiled=compiled)
    pass_tokens = sequence_length * micro_batch_size * n_gpus
    grad_accum_steps = max(1, round((_number(row["global_batch_tokens"]) or pass_tokens) / pass_tokens))
    trainer = replace(
        plan.trainer,
        grad_accum_steps=grad_accum_steps,
        tokens_per_step=pass_tokens * grad_accum_steps,
        precision=precision,
        activation_checkpointing=Checkpointing.full if row["activation_ckpt"] == "full" else Checkpointing.none,
    )
    return replace(plan, trainer=trainer, hw=replace(plan.hw, n_nodes=n_nodes))


def _implementation(row: Mapping[str, str], facts: Code) -> Implementation:
    attention = row["attention"]
    is_unfused = any(words in attention for words in ("no flash", "eager", "from scratch"))
    is_fused_softmax = "fused softmax" in attention
    score_bytes = FUSED_SOFTMAX_SCORE_BYTES if is_fused_softmax else EAGER_SCORE_BYTES
    if facts.dropout > 0:
        score_bytes += FUSED_SOFTMAX_DROPOUT_BYTES if is_fused_softmax else EAGER_DROPOUT_BYTES
    return Implementation(
        fused_attention=not is_unfused,
        fused_attention_slowdown=FIRST_FLASH_SLOWDOWN if _torch_version(row) < SECOND_FLASH_TORCH else 1.0,
        score_bytes=score_bytes if is_unfused else 0.0,
        fused_dropout=facts.fuses_dropout,
        compiles_loss=facts.compiles_loss,
        elementary_accesses=facts.elementary_accesses,
        sharded="FSDP" in row["parallel"] or "ZeRO-3" in row["parallel"],
        overlapped=row["parallel"].split(" ")[0] != "DP",  # Megatron's own data parallelism reduces after the backward
        has_optimizer="NO optimizer" not in row["note"],
        recomputed_fraction=SELECTIVE_RECOMPUTED_FRACTION if row["activation_ckpt"].startswith("selective") else None,
    )


def _torch_version(row: Mapping[str, str]) -> tuple[int, int]:
    """As the row's framework states it; a current one where it does not."""
    found = re.search(r"torch ?(\d+)(?:\.(\d+))?", row["framework"], re.IGNORECASE)
    return (int(found.group(1)), int(found.group(2) or 0)) if found else SECOND_FLASH_TORCH


def _seconds(row: Mapping[str, str], tokens_per_step: int) -> float:
    tokens_per_second = _number(row["tokens_per_s_total"])
    if tokens_per_second:
        return tokens_per_step / tokens_per_second
    milliseconds = _number(row["step_ms"])
    if milliseconds and _number(row["global_batch_tokens"]):
        return milliseconds / 1e3
    raise Skip("no speed stated for a step of known size")
