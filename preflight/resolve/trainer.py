"""How is the model trained: precision, length, schedule, and how often it is evaluated, saved and logged?

Intervals that nobody gave follow from the number of steps (`preflight.schedule`); a log line every ten steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from conf.choices import Attention, Float32Matmul, Optimizer, OptimizerKernel, PrecisionChoice
from conf.schema import Config
from preflight.hw_plan import Card, CardKind
from preflight.plan import Checkpointing, Precision, TrainerPlan
from preflight.products import has_tf32
from preflight.resolve.batch import Batch
from preflight.resolve.combinations import absolute_start
from preflight.resolve.kernels import default_attention
from preflight.resolve.resolution import Resolution
from preflight.schedule import (
    at_most_the_data,
    default_checkpoint_interval,
    default_eval_interval,
    default_n_eval_sequences,
)

N_LOG_LINES = 50
MAX_LOG_INTERVAL = 10
ROUNDING_TO_TELL = 0.01  # of the tokens asked for; whole steps are rarely exact

AS_GIVEN = (  # the same in the plan
    "weight_decay", "beta1", "beta2", "grad_clip", "keep_checkpoints", "keep_best", "max_nonfinite_steps",
    "loss_chunk_tokens", "parallel", "bucket_views", "adapter", "lora_rank", "lora_alpha", "lora_targets", "optimizer",
    "muon_learning_rate", "eval_micro_batch_size",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What the trainer's numbers depend on."""

    card_kind: CardKind
    precision: Precision
    batch: Batch
    world_size: int
    n_val_tokens: int | None


def resolve_trainer(config: Config, needs: Needs, resolution: Resolution) -> TrainerPlan | None:
    """None: the length of the run contradicts itself; the problem is noted."""
    trainer, batch = config.trainer, needs.batch
    choose = resolution.choose
    n_steps = _n_steps(config, batch.tokens_per_step, resolution)
    if n_steps is None:
        return None
    rate = choose("trainer.learning_rate", trainer.learning_rate, config.model.recipe.learning_rate, "recipe")
    compiles = needs.card_kind in (CardKind.cuda, CardKind.rocm)
    eval_interval = choose("trainer.eval_interval", trainer.eval_interval, default_eval_interval(n_steps), "default")
    checkpoint_interval = default_checkpoint_interval(n_steps)
    log_interval = min(max(1, n_steps // N_LOG_LINES), MAX_LOG_INTERVAL)
    return TrainerPlan(
        micro_batch_size=batch.micro_batch_size,
        grad_accum_steps=batch.grad_accum_steps,
        tokens_per_step=batch.tokens_per_step,
        sequence_length=batch.sequence_length,
        n_steps=n_steps,
        precision=needs.precision,
        compile=choose("trainer.compile", trainer.compile, compiles, "default"),
        activation_checkpointing=Checkpointing[trainer.activation_checkpointing.name],
        learning_rate=rate,
        min_learning_rate=rate * trainer.min_learning_rate_fraction,
        n_warmup_steps=_n_warmup_steps(trainer.warmup_fraction, n_steps),
        eval_interval=eval_interval,
        n_eval_sequences=_n_eval_sequences(config, needs, n_steps, eval_interval, resolution),
        checkpoint_interval=choose(
            "trainer.checkpoint_interval", trainer.checkpoint_interval, checkpoint_interval, "default"
        ),
        log_interval=choose("trainer.log_interval", trainer.log_interval, log_interval, "default"),
        attention=choose("trainer.attention", trainer.attention, _attention(config, needs), "default"),
        float32_matmul_precision=_float32_matmul(trainer.float32_matmul_precision, needs.precision),
        init_from=absolute_start(trainer.init_from),
        optimizer_kernel=choose(
            "trainer.optimizer_kernel", trainer.optimizer_kernel, _optimizer_kernel(trainer.optimizer), "default"
        ),
        **{name: getattr(trainer, name) for name in AS_GIVEN},
        save_beside=choose("trainer.save_beside", trainer.save_beside, compiles, "default"),
    )


def _float32_matmul(given: Float32Matmul | None, precision: Precision) -> Float32Matmul:
    return given or (Float32Matmul.high if precision is Precision.tf32 else Float32Matmul.highest)


def _attention(config: Config, needs: Needs) -> Attention:
    return default_attention(
        needs.card_kind,
        needs.precision,
        _float32_matmul(config.trainer.float32_matmul_precision, needs.precision),
        sequence_length=needs.batch.sequence_length,
        dropout=config.model.dropout,
    )


def _optimizer_kernel(optimizer: Optimizer) -> OptimizerKernel:
    """The fastest that PyTorch has."""
    return OptimizerKernel.foreach if optimizer is Optimizer.adafactor else OptimizerKernel.fused


def auto_precision(card: Card) -> Precision:
    """What the hardware does well: bf16 from compute capability 8.0 or in a CPU's units, fp16 on 7.x, else fp32."""
    if card.kind is CardKind.mps:
        return Precision.fp32
    if card.kind is CardKind.cuda and card.compute_capability is not None:
        if card.compute_capability >= 8.0 and card.has_bf16:
            return Precision.bf16
        return Precision.fp16 if card.compute_capability >= 7.0 else Precision.fp32
    if card.has_bf16:
        return Precision.bf16
    return Precision.fp16 if card.kind is CardKind.rocm else Precision.fp32


def resolve_precision(choice: PrecisionChoice, card: Card, resolution: Resolution) -> Precision | None:
    """None: the card cannot do it; the problem is noted."""
    if choice is PrecisionChoice.auto:
        resolution.provenance["trainer.precision"] = "default"
        return auto_precision(card)
    resolution.provenance["trainer.precision"] = "given"
    precision = Precision[choice.name]
    fault = _precision_fault(precision, card)
    if fault is None:
        return precision
    better = auto_precision(card)
    resolution.refuse("trainer.precision", choice.name, f"{card.label}: {fault}", f"trainer.precision={better.name}")
    return None


def _precision_fault(precision: Precision, card: Card) -> str | None:
    if precision is Precision.fp32:
        return None
    if card.kind is CardKind.mps:
        return "Apple GPUs are trained on in fp32 here"
    if precision is Precision.tf32 and not has_tf32(card):
        return "has no TF32 units, which came with compute capability 8.0"
    if precision is Precision.fp16 and card.kind is CardKind.cpu:
        return "CPUs have no fast fp16; bf16 needs no loss scaler either"
    is_bf16 = precision in (Precision.bf16, Precision.bf16_pure)
    if is_bf16 and card.kind is CardKind.cuda and not card.has_bf16:
        capability = f"{card.compute_capability}" if card.compute_capability is not None else "unknown"
        return f"bf16 needs compute capability 8.0, this card has {capability}"
    return None


def _n_steps(config: Config, tokens_per_step: int, resolution: Resolution) -> int | None:
    """Given, or the tokens in whole steps, rounded to the nearest."""
    n_steps, total_tokens = config.trainer.n_steps, config.trainer.total_tokens
    tokens = total_tokens if total_tokens is not None else config.model.recipe.total_tokens
    rounded = (tokens + tokens_per_step // 2) // tokens_per_step
    if n_steps is not None:
        resolution.provenance["trainer.n_steps"] = "given"
        if total_tokens is not None and rounded != n_steps:
            message = (
                f"{n_steps:,} steps of {tokens_per_step:,} tokens are {n_steps * tokens_per_step:,} tokens, "
                f"trainer.total_tokens={total_tokens} are {rounded:,} steps; give one of the two"
            )
            kept = "trainer.n_steps=null" if rounded else "trainer.total_tokens=null"
            resolution.refuse("trainer.n_steps", n_steps, message, kept)
            return None
        return n_steps
    origin = "recipe" if total_tokens is None else "given"
    if tokens < tokens_per_step:
        message = f"one step alone has {tokens_per_step:,} tokens, the run has {tokens:,} ({origin})"
        resolution.refuse("trainer.total_tokens", tokens, message, f"trainer.total_tokens={tokens_per_step}")
        return None
    resolution.provenance["trainer.total_tokens"] = origin
    if total_tokens is not None and abs(rounded * tokens_per_step / tokens - 1) > ROUNDING_TO_TELL:
        whole = rounded * tokens_per_step
        resolution.provenance["trainer.total_tokens"] = f"given: {whole:,} instead, {rounded:,} whole steps"
    return rounded


def _n_warmup_steps(fraction: float, n_steps: int) -> int:
    return min(n_steps, max(1, round(fraction * n_steps))) if fraction > 0 else 0


def _n_eval_sequences(config: Config, needs: Needs, n_steps: int, eval_interval: int, resolution: Resolution) -> int:
    """Held-out sequences of one evaluation, all ranks together; never more than the data has."""
    batch, given = needs.batch, config.trainer.eval_tokens
    resolution.provenance["trainer.eval_tokens"] = "default" if given is None else "given"
    if given is not None:
        per_rank = -(-given // (batch.sequence_length * needs.world_size))
        n_sequences = per_rank * needs.world_size
    else:
        n_sequences = default_n_eval_sequences(n_steps, eval_interval, batch.tokens_per_step, batch.sequence_length)
    return at_most_the_data(n_sequences, needs.n_val_tokens, batch.sequence_length, needs.world_size)
