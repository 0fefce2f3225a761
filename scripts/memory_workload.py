"""What does the code that a row of measurements describes hold and compute with?"""

from __future__ import annotations

import re
from collections.abc import Mapping

from conf.choices import AdapterTargets, Optimizer, OptimizerKernel
from preflight.memory.numerics import AUTOCAST, FP32_BYTES, FULL, HALF_BYTES, PURE_HALF, Numerics, compiled
from preflight.memory.workload import NF4_BYTES_PER_WEIGHT, NO_SHARDS, Adapters, Scores, Shards, Workload
from preflight.params import count_params, kv_dim, n_mlp_matrices, q_dim
from preflight.plan import Checkpointing, ModelPlan, RunPlan
from scripts.accuracy_rows import Skip
from scripts.memory_frameworks import Framework

DEEPSPEED_BUCKET_ELEMENTS = 500_000_000  # reduce_bucket_size and allgather_bucket_size
DEEPSPEED_LIVE_ELEMENTS = 1_000_000_000  # stage3_max_live_parameters
# DeepSpeed and FSDP hold fp32 weights and moments beside 16-bit weights and gradients (Rajbhandari et al. 2020).
SHARDED_HALF = PURE_HALF._replace(master=FP32_BYTES, moment=FP32_BYTES)
GPTQ_BYTES_PER_WEIGHT = 0.5 + (2 + 0.5) / 128  # a scale and a zero for every 128


def number(text: str) -> float | None:
    """A plain one, or None."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*", text)
    return float(found.group(1)) if found else None


def said(row: Mapping[str, str], name: str, default: str | None) -> str:
    """The row's own word, else the framework's."""
    if not row[name] and default is None:
        raise Skip(f"not stated: {name}")
    return row[name] or default or ""


def workload_of_row(row: Mapping[str, str], plan: RunPlan, framework: Framework) -> Workload:
    """Of the framework's code with the row's settings."""
    n_gpus, note, model = plan.hw.world_size, row["note"], plan.model
    numerics = _numerics(row, plan, framework)
    optimizer, kernel = _optimizer(said(row, "optimizer", framework.optimizer))
    recompute = _recompute(row, framework)
    adapters = _adapters(row, model, framework, numerics)
    is_sharded = row["parallel"] not in ("single", "ddp", "")
    is_llama_norm = model.norm.value == "rmsnorm" and framework.writes_norms_out
    norm_extra = _norm_extra_bytes(numerics, is_frozen=adapters is not None) if is_llama_norm else 0
    writes_all_out = "hand-written LayerNorm" in note
    if writes_all_out:
        norm_extra = 2 * numerics.residual  # x - mean, and before the scale
    return Workload(
        model=model,
        n_sequences=plan.trainer.micro_batch_size,
        sequence_length=plan.trainer.sequence_length,
        numerics=numerics,
        recompute=recompute,
        keeps_gradients=n_gpus > 1 or bool(re.search(r"grad(ient)? accum|gradients persist", note)),
        has_buckets=False,
        mask_bytes=1,
        attention=Scores.matrix if said(row, "attention", framework.attention) == "eager" else Scores.none,
        n_eval_sequences=0,
        copies_buckets=n_gpus > 1 and not is_sharded,  # DistributedDataParallel's default
        optimizer=optimizer,
        kernel=kernel,
        shards=_shards(row, framework, n_gpus, recompute) if is_sharded else NO_SHARDS,
        adapters=adapters,
        loss_chunk_tokens=0 if "Liger" not in note or "no Liger" in note else 1024,
        keeps_logits=framework.keeps_logits,
        norm_extra_bytes=norm_extra,
        n_extra_wide=3 if writes_all_out or framework.writes_gelu_out else 0,  # tanh's GELU: x / 2, tanh, 1 + tanh
        n_extra_narrow=2 if framework.caches_keys else 0,
        expandable_segments="expandable segments" in note and "no expandable" not in note,
        repeats_kv=framework.repeats_kv,
        optimizer_on_host=bool(re.search(r"offload", f"{row['optimizer']} {note}")),
        loads_whole_weights=is_sharded and framework.loads_whole_weights,
        communication_bytes=_communication_bytes(row, framework),
        n_other_params=_n_other_params(row, plan, framework),
    )


def _numerics(row: Mapping[str, str], plan: RunPlan, framework: Framework) -> Numerics:
    precision = said(row, "precision", framework.precision)
    is_sharded = row["parallel"] not in ("single", "ddp", "")
    is_deepspeed = "DeepSpeed" in f"{precision} {row['framework']}" and is_sharded
    if is_deepspeed or (is_sharded and ("amp" in precision or "mixed" in precision)):
        numerics = SHARDED_HALF
        if not is_deepspeed:  # gradients are kept in fp32
            numerics = numerics._replace(weight=FP32_BYTES, master=0)
    elif "autocast" in precision or "amp" in precision or "mixed" in precision:
        numerics = AUTOCAST
    elif precision.startswith(("bf16", "fp16", "int4")):
        numerics = PURE_HALF
    elif precision.startswith(("fp32", "tf32")):
        numerics = FULL
    else:
        raise Skip("not stated: precision")
    if framework.fuses_loss or (plan.trainer.compile and framework.loss_inside_model):
        numerics = compiled(numerics)
    if framework.upcasts_logits and not numerics.casts_weights and numerics.compute == HALF_BYTES:
        numerics = numerics._replace(loss_forward_bytes_per_logit=10, loss_backward_bytes_per_logit=12)
    return numerics


def _norm_extra_bytes(numerics: Numerics, *, is_frozen: bool) -> int:
    """An fp32 copy in place of a 16-bit input, and what the weight multiplies where its gradient is wanted."""
    return (FP32_BYTES - numerics.norm) + (0 if is_frozen else numerics.compute)


def _optimizer(name: str) -> tuple[Optimizer, OptimizerKernel]:
    kernel = OptimizerKernel.fused if "fused" in name else OptimizerKernel.foreach
    if name.startswith("Muon"):
        return Optimizer.muon, kernel
    if name.startswith("AdamW"):
        return (Optimizer.adamw_8bit if "8bit" in name else Optimizer.adamw), kernel
    raise Skip("not modelled: this optimizer")


def _recompute(row: Mapping[str, str], framework: Framework) -> Checkpointing:
    return Checkpointing(row["activation_ckpt"] or framework.recomputes)


def _adapters(row: Mapping[str, str], model: ModelPlan, framework: Framework, numerics: Numerics) -> Adapters | None:
    words = f"{row['model']} {row['note']}"
    if not re.search(r"lora", words, re.IGNORECASE):
        return None
    found = re.search(r"\br ?= ?(\d+)|\br(\d+)\b", words)
    rank = int(found.group(1) or found.group(2)) if found else framework.lora_rank
    targets = framework.lora_targets
    if re.search(r"all.?(linear|layers)", words):
        targets = AdapterTargets.linear
    elif re.search(r"\bq,v\b", words):
        targets = AdapterTargets.query_value
    is_linear = targets is AdapterTargets.linear
    width, heads, shared = model.n_embd, q_dim(model), kv_dim(model)
    sizes = [(width, heads), (width, shared)]
    if is_linear:
        sizes += [(width, shared), (heads, width)] + n_mlp_matrices(model) * [(width, model.d_ff)]
    stated = re.search(r"trainable ([\d,]+)", words)
    n_params = int(stated.group(1).replace(",", "")) if stated else model.n_layer * rank * sum(map(sum, sizes))
    quantised = _quantised_bytes(row["precision"], words)
    rest = framework.quantised_rest if quantised else numerics.compute
    n_rest = 2 * model.vocab_size * width if "(emb)" in words else 0  # modules_to_save: embeddings and head
    return Adapters(
        n_params=n_params if framework.lora_in_half else n_params * FP32_BYTES // numerics.weight,
        n_narrow=rank * len(sizes),
        rank=rank,
        frozen=quantised or numerics.compute,
        frozen_tables=rest,
        frozen_vectors=rest,
        n_norm_readers=2 + is_linear if framework.lora_dropout else 1,
        n_mlp_readers=is_linear * (n_mlp_matrices(model) - 1),
        reads_attention=is_linear,
        reads_mlp_hidden=is_linear,
        has_dropout=framework.lora_dropout,
        n_trained_rest=n_rest,
    )


def _quantised_bytes(precision: str, words: str) -> float:
    """Bytes of a weight; 0: it is not quantised."""
    if re.search(r"nf4-dq", precision):
        return NF4_BYTES_PER_WEIGHT
    if re.search(r"int4|awq|gptq", f"{precision} {words}", re.IGNORECASE):
        return GPTQ_BYTES_PER_WEIGHT
    if re.search(r"nf4|qlora|q-lora", f"{precision} {words}", re.IGNORECASE):
        return 0.5 + FP32_BYTES / 64
    return 0.0


def _shards(row: Mapping[str, str], framework: Framework, n_gpus: int, recompute: Checkpointing) -> Shards:
    """DeepSpeed: stage 3 keeps what autograd saved of the weights, unless blocks are run again."""
    if row["parallel"] == "zero2":
        return Shards(optimizer=n_gpus, gradients=n_gpus)
    if row["parallel"] == "zero3" or framework.shards_like == "deepspeed":
        return Shards(
            n_gpus, n_gpus, n_gpus, gathered=HALF_BYTES, reduced=HALF_BYTES,
            keeps_gathered=recompute is Checkpointing.none,
        )  # fmt: skip
    return Shards(
        n_gpus,
        n_gpus,
        n_gpus,
        gathered=HALF_BYTES,
        reduced=HALF_BYTES if "fsdp1" in framework.shards_like else FP32_BYTES,
    )


def _communication_bytes(row: Mapping[str, str], framework: Framework) -> int:
    """DeepSpeed's buckets: gradients on their way in stage 2, weights alive in stage 3."""
    if row["parallel"] == "zero2":
        return 2 * HALF_BYTES * DEEPSPEED_BUCKET_ELEMENTS
    params = number(row["params"]) or DEEPSPEED_LIVE_ELEMENTS
    if row["parallel"] == "zero3" and framework.shards_like == "deepspeed":
        return HALF_BYTES * int(min(params, DEEPSPEED_LIVE_ELEMENTS))
    return 0


def _n_other_params(row: Mapping[str, str], plan: RunPlan, framework: Framework) -> int:
    """Of value embeddings: what the stated count has beyond the rest."""
    stated = number(row["params"])
    if not framework.value_embeddings or stated is None:
        return 0
    return max(0, int(stated) - count_params(plan.model, plan.trainer.sequence_length).total)
