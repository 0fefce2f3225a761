"""The frozen plan: every decision resolved, nothing left to `auto`; a bill can be worked out again from it alone.

`preflight.resolve` makes it, `preflight.lowering.lower` returns changed copies, `preflight.planfile` stores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import isqrt

from conf.choices import (
    Activation,
    Adapter,
    AdapterTargets,
    Attention,
    Currency,
    DataKind,
    Enforce,
    Family,
    Float32Matmul,
    JudgeOn,
    Norm,
    OnOom,
    Optimizer,
    OptimizerKernel,
    Parallel,
    PolicyChoice,
    Positions,
    Show,
    Tokenizer,
    TrackingBackend,
    TrackingMode,
)
from preflight.hw_plan import HwPlan


class Precision(Enum):
    """Arithmetic of the forward and backward pass; weights and Adam's moments stay fp32."""

    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"
    fp16 = "fp16"
    bf16_pure = "bf16_pure"  # weights and moments too


class Checkpointing(Enum):
    """Activation checkpointing."""

    none = "none"
    selective = "selective"
    full = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """Shape of the model."""

    name: str
    family: Family
    n_layer: int
    n_head: int
    n_kv_head: int
    n_embd: int
    d_ff: int
    vocab_size: int
    tokenizer: Tokenizer
    tied_head: bool
    bias: bool
    dropout: float
    norm: Norm = Norm.layernorm
    positions: Positions = Positions.learned
    activation: Activation = Activation.gelu
    qkv_bias: bool = False
    qk_norm: bool = False
    head_dim: int = 0  # 0: n_embd / n_head; resolve writes the number
    n_positions: int | None = None  # None: the sequence length
    rope_theta: float = 10_000.0  # base of the wavelengths of rotary positions
    norm_eps: float = 1e-5
    path: str | None = None  # absolute folder of Hugging Face's config.json


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlan:
    """Which tokens. Paths are absolute."""

    kind: DataKind
    name: str
    source_path: str | None  # the user's text, for kind=text
    dir: str  # folder with train.bin, val.bin, manifest.json
    val_fraction: float
    prepared: bool
    n_train_tokens: int | None  # None: not prepared, or not yet counted
    n_val_tokens: int | None
    dtype: str | None  # uint16 | uint32
    n_source_bytes: int | None = None  # of the user's text: it has no more tokens than bytes
    field: str = "text"  # of .jsonl and .parquet files
    tokenizer_path: str | None = None  # absolute; None: the model's tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPlan:
    """How the model is trained."""

    micro_batch_size: int
    grad_accum_steps: int
    tokens_per_step: int
    sequence_length: int
    n_steps: int
    precision: Precision
    compile: bool
    activation_checkpointing: Checkpointing
    learning_rate: float
    min_learning_rate: float
    n_warmup_steps: int
    weight_decay: float
    beta1: float
    beta2: float
    grad_clip: float
    eval_interval: int  # steps; 0: only at the end
    n_eval_sequences: int  # over all ranks
    checkpoint_interval: int
    keep_checkpoints: int
    log_interval: int
    attention: Attention = Attention.sdpa
    float32_matmul_precision: Float32Matmul = Float32Matmul.highest
    loss_chunk_tokens: int = 0  # 0: all at once
    parallel: Parallel = Parallel.ddp
    bucket_views: bool = True
    init_from: str | None = None
    adapter: Adapter = Adapter.none
    lora_rank: int = 8
    lora_alpha: float = 16.0
    lora_targets: AdapterTargets = AdapterTargets.linear
    optimizer: Optimizer = Optimizer.adamw
    optimizer_kernel: OptimizerKernel = OptimizerKernel.fused
    muon_learning_rate: float = 0.02
    eval_micro_batch_size: int | None = None  # None: micro_batch_size
    keep_best: bool = False
    save_beside: bool = False
    max_nonfinite_steps: int = 20

    @property
    def total_tokens(self) -> int:
        """Tokens seen in training."""
        return self.n_steps * self.tokens_per_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """What money is shown in. The sums are in USD."""

    currency: Currency = Currency.usd
    per_usd: float = 1.0
    symbol: str = "$"
    source: str = ""
    as_of: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPlan:
    """Limits. None: no limit."""

    max_hours: float | None
    max_cost_usd: float | None
    max_energy_kwh: float | None
    max_memory_fraction: float
    judge_on: JudgeOn
    enforce: Enforce = Enforce.stop
    deadline: str | None = None  # ISO 8601 with its zone
    deadline_unix_seconds: float | None = None  # the same moment
    deadline_hours: float | None = None  # from the plan's creation to it
    max_disk_bytes: float | None = None
    max_host_memory_bytes: float | None = None  # of one node
    money: Money = Money()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweringPlan:
    """What may be changed, and what the model rung has to choose from (same family, smaller, largest first)."""

    policy: PolicyChoice
    keep: tuple[str, ...]
    allow_model: bool
    smaller_models: tuple[ModelPlan, ...]
    rungs: tuple[str, ...] = ("batch", "precision", "model")  # the least change first
    raise_batch: bool = False
    show: Show = Show.refused
    on_oom: OnOom = OnOom.stop


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherPlan:
    """How the plan reaches its processors."""

    grace_seconds: float
    time_limit_hours: float | None = None  # of one launch; None: nobody said


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingPlan:
    """Where the numbers go besides the run folder."""

    backend: TrackingBackend
    mode: TrackingMode
    project: str
    entity: str | None
    notes: str
    tags: tuple[str, ...]
    group: str | None = None  # None: the run folder's name
    artifacts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """What earlier runs say about one number: measured / formula, or a measured absolute.

    `low` and `high` are the p10 and p90 to use once the factor is applied.
    """

    value: float
    low: float
    high: float
    n_runs: int
    scope: str  # "same plan", "same machine", ...: what the runs share with this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Frozen into the plan, so that every bill can be recomputed. Keys of `factors`:

    ratios      step_seconds, activation_bytes, evaluation_seconds, checkpoint_seconds
    absolutes   base_memory_bytes, startup_seconds, compile_seconds, shutdown_seconds, watts (of one node)
    """

    n_runs: int
    factors: Mapping[str, Factor]
    ledger_sha256: str | None


NO_CALIBRATION = Calibration(n_runs=0, factors={}, ledger_sha256=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Versions that the sums depend on; torch is read from its metadata, never imported."""

    python: str
    torch: str | None
    preflight: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Everything the sums and the trainer need."""

    name: str
    created_at: str  # ISO 8601, UTC
    command: str  # what was typed
    seed: int
    model: ModelPlan
    data: DataPlan
    hw: HwPlan
    trainer: TrainerPlan
    budget: BudgetPlan
    lowering: LoweringPlan
    launcher: LauncherPlan
    tracking: TrackingPlan
    software: Software
    runs_dir: str  # absolute
    calibration: Calibration = NO_CALIBRATION
    provenance: Mapping[str, str] = field(default_factory=dict)  # config path -> given | default | detected | recipe


def with_micro_batch_size(trainer: TrainerPlan, micro_batch_size: int, world_size: int) -> dict[str, int]:
    """The two fields that move together; raises ValueError when the global batch would change."""
    n_sequences = trainer.tokens_per_step // trainer.sequence_length
    if n_sequences % (micro_batch_size * world_size):
        raise ValueError(f"{micro_batch_size} x {world_size} ranks does not divide {n_sequences} sequences")
    return {
        "micro_batch_size": micro_batch_size,
        "grad_accum_steps": n_sequences // (micro_batch_size * world_size),
    }


def valid_micro_batch_sizes(trainer: TrainerPlan, world_size: int) -> list[int]:
    """Every micro-batch that keeps `tokens_per_step` exactly, ascending."""
    n_sequences = trainer.tokens_per_step // trainer.sequence_length
    if n_sequences % world_size:
        return []
    per_rank = n_sequences // world_size
    small = [size for size in range(1, isqrt(per_rank) + 1) if per_rank % size == 0]
    return sorted({*small, *(per_rank // size for size in small)})
