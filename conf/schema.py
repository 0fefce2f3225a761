"""What may stand in the configuration: one plain dataclass a group; the choices stand in `conf.choices`.

`None` means "decide for me"; `preflight.resolve.resolve` replaces every `None` and every `auto` exactly once.
Values people choose live in the YAML beside this file; names, types and units live here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from conf.choices import (
    Action,
    Activation,
    Adapter,
    AdapterTargets,
    Attention,
    CheckpointingChoice,
    CompareBy,
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
    PrecisionChoice,
    ReportChoice,
    Show,
    Tokenizer,
    TrackingBackend,
    TrackingMode,
)

# Hydra resolves these annotations at run time, so the names must be importable here: str, int, Enum, list.


@dataclass(kw_only=True, slots=True)
class RecipeConfig:
    """What a model is usually trained with; every value is a default of `trainer.*`."""

    sequence_length: int  # tokens
    micro_batch_size: int  # sequences per rank per pass
    tokens_per_step: int  # the global batch, in tokens
    total_tokens: int
    learning_rate: float


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """Shape of a decoder-only transformer."""

    name: str
    family: Family
    n_layer: int
    n_head: int
    n_kv_head: int | None = None  # None: as many as n_head
    n_embd: int
    d_ff: int | None = None  # None: 4 x n_embd for gpt2; llama presets give it
    vocab_size: int
    tokenizer: Tokenizer
    tied_head: bool
    bias: bool = False  # on linears and LayerNorms
    qkv_bias: bool | None = None  # on queries, keys and values; None: as bias
    dropout: float = 0.0
    norm: Norm | None = None  # None here and below: as the family has it
    positions: Positions | None = None
    activation: Activation | None = None
    qk_norm: bool = False  # queries and keys are normalised per head
    head_dim: int | None = None  # None: n_embd / n_head
    n_positions: int | None = None  # rows of the table of learned positions; None: the sequence length
    rope_theta: float = 10_000.0  # base of the wavelengths of rotary positions
    norm_eps: float = 1e-5  # added to the variance
    path: str | None = None  # model=hf: a folder with Hugging Face's config.json
    recipe: RecipeConfig


@dataclass(kw_only=True, slots=True)
class DataConfig:
    """Which text, and where its token files are kept."""

    kind: DataKind
    path: str | None = None  # text: a file or folder; bin: a folder with train.bin and val.bin
    field: str = "text"  # of .jsonl and .parquet files: where the text stands
    tokenizer: str | None = None  # a tokenizer.json for data=text; None: the model's
    dir: str = "data"  # prepared token files live in <dir>/<name>/
    val_fraction: float = 0.1  # of the text, held out


@dataclass(kw_only=True, slots=True)
class CustomCardConfig:
    """Numbers of a card that the catalog lacks (`hw.card=custom`)."""

    memory_gib: float | None = None
    bf16_tflops: float | None = None  # dense, FP32 accumulate
    fp16_tflops: float | None = None
    fp32_tflops: float | None = None
    bandwidth_gb_per_second: float | None = None
    watts: float | None = None
    compute_capability: float | None = None


@dataclass(kw_only=True, slots=True)
class HwConfig:
    """The machine the bill is for. `hw=4x4090`, `hw=2x8xh100`, `hw=auto`, `hw=cpu`, `hw=2xcpu`."""

    card: str  # catalog name or alias, `auto`, `cpu` or `custom`
    n_nodes: int = 1
    n_gpus_per_node: int | None = None  # None: all of them (auto), one (named card)
    network_gbit_per_second: float | None = None  # between nodes, all adapters of a node; None: usual ones, as told
    price_usd_per_hour: float | None = None  # your own price of one node with all its cards
    spot: bool = False  # rented at the price of a machine that may be taken away
    interruptions_per_day: float | None = None  # of a spot node; None: what is published, as a wide band
    purchase_usd: float | None = None  # of one owned node: its hours carry their share of it. None: electricity alone
    lifetime_years: float = 4.0  # over which it is written off
    hours_per_year: float = 2000.0  # that it is in use
    owned: bool | None = None  # None: auto and cpu are owned, a named card is rented
    country: str = "world"  # whose electricity tariff and grid intensity
    electricity_usd_per_kwh: float | None = None
    watts: float | None = None  # what one node draws in training, when you know it
    custom: CustomCardConfig = field(default_factory=CustomCardConfig)


@dataclass(kw_only=True, slots=True)
class TrainerConfig:
    """How the model is trained. None: the model's recipe, or derived."""

    micro_batch_size: int | None = None  # sequences per rank per pass
    tokens_per_step: int | None = None  # the global batch; lowering never changes it
    sequence_length: int | None = None
    n_steps: int | None = None  # give this or total_tokens
    total_tokens: int | None = None
    precision: PrecisionChoice = PrecisionChoice.auto
    compile: bool | None = None  # None: on for CUDA cards, off for cpu and mps
    activation_checkpointing: CheckpointingChoice = CheckpointingChoice.none
    attention: Attention | None = None  # None: what is faster on the hardware
    float32_matmul_precision: Float32Matmul | None = None  # None: highest; high for precision=tf32
    loss_chunk_tokens: int = 0  # logits of so many tokens at a time; 0: of the whole micro-batch
    parallel: Parallel = Parallel.ddp
    bucket_views: bool = True  # gradients live in DDP's buckets
    init_from: str | None = None  # hf:DIR, a run folder or `latest`: weights to start from
    adapter: Adapter = Adapter.none
    lora_rank: int = 8
    lora_alpha: float = 16.0
    lora_targets: AdapterTargets = AdapterTargets.linear
    optimizer: Optimizer = Optimizer.adamw
    optimizer_kernel: OptimizerKernel | None = None  # None: fused where there is such a kernel
    learning_rate: float | None = None
    muon_learning_rate: float = 0.02  # of the matrices that Muon trains
    min_learning_rate_fraction: float = 0.1  # where the cosine ends, as a fraction of its peak
    warmup_fraction: float = 0.02  # of the steps, linear
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    grad_clip: float = 1.0  # 0 turns it off
    eval_interval: int | None = None  # steps; None: ten times a run, at least every 1,000; 0: only at the end
    eval_micro_batch_size: int | None = None  # None: micro_batch_size
    eval_tokens: int | None = None  # held-out tokens an evaluation; None: all evaluations read a tenth of the run's
    checkpoint_interval: int | None = None  # steps; None: five times a run, at least every 1,000
    keep_checkpoints: int = 2  # the newest so many
    keep_best: bool = True  # and, of those saved where it was evaluated, the one with the lowest held-out loss
    save_beside: bool | None = None  # a thread writes a copy while training goes on. None: on cards
    max_nonfinite_steps: int = 20  # in a row that fp16's scaler may skip; elsewhere the first has spoilt the weights
    log_interval: int | None = None  # steps; None: fifty lines a run, at least every 10


@dataclass(kw_only=True, slots=True)
class BudgetConfig:
    """Limits. None: no limit."""

    max_hours: float | None = 24.0
    max_cost_usd: float | None = None
    max_energy_kwh: float | None = None
    max_memory_fraction: float = 0.95  # of the card's memory, held against the band's high edge
    max_disk_gib: float | None = None  # checkpoints and prepared data; None: what is free where the run is started
    max_host_memory_gib: float | None = None  # of one node, beside the cards; None: what is free there
    deadline: str | None = None  # date and time, 2026-12-24T18:00, with a zone or in this machine's
    judge_on: JudgeOn = JudgeOn.mid
    currency: Currency = Currency.usd
    enforce: Enforce | None = None  # during the run. None: stop; warn when lowering.policy=off launched it knowingly


@dataclass(kw_only=True, slots=True)
class LoweringConfig:
    """What the launcher may change when the plan is over a budget."""

    policy: PolicyChoice = PolicyChoice.auto
    keep: list[str] = field(default_factory=list)  # rungs never used: batch, precision, model
    # What may be lowered, the least change first. Besides these three: loss_chunk, checkpointing, sharding, optimizer
    rungs: list[str] = field(default_factory=lambda: ["batch", "precision", "model"])
    allow_model: bool = False  # a smaller model changes the science: only with consent
    raise_batch: bool = False  # a larger micro-batch is taken where it is faster and fits
    on_oom: OnOom = OnOom.stop  # during the run
    show: Show = Show.refused  # the whole ladder as a table


@dataclass(kw_only=True, slots=True)
class LauncherConfig:
    """How the plan reaches its processors."""

    grace_seconds: float = 120.0  # to finish the step and save after a signal
    time_limit_hours: float | None = None  # the machine is taken away then; None: Slurm's limit, if there is one


@dataclass(kw_only=True, slots=True)
class TrackingConfig:
    """Where the numbers go besides the run folder."""

    backend: TrackingBackend
    mode: TrackingMode = TrackingMode.auto
    project: str = "preflight"
    entity: str | None = None
    notes: str = ""
    tags: list[str] = field(default_factory=list)
    group: str | None = None  # None: the run folder's name; the rows of a grid share one
    artifacts: bool = False  # the tracker keeps plan, metrics and the newest checkpoint too


@dataclass(kw_only=True, slots=True)
class CompareConfig:
    """Of `action=compare`: which offers, in which order, and where else to write them. None: no limit, no file."""

    by: CompareBy = CompareBy.cost
    max_hours: float | None = None  # slower offers are left out; budget.max_hours only marks them
    max_gpus: int | None = None  # larger machines are left out
    providers: list[str] = field(default_factory=list)  # these alone; empty: all of them
    spot: bool = False  # offers that may be interrupted, too
    csv: str | None = None  # a file for all rows
    png: str | None = None  # a file for the picture: hours against money


@dataclass(kw_only=True, slots=True)
class CalibrateConfig:
    """Of `action=calibrate`: how much it may take."""

    max_seconds: float = 60.0  # start-up and saving included
    max_steps: int = 20  # of the asked plan


@dataclass(kw_only=True, slots=True)
class GridConfig:
    """Of `-m`: where else to write its rows. None: no file."""

    csv: str | None = None
    json: str | None = None


@dataclass(kw_only=True, slots=True)
class Config:
    """Everything `python launch.py` accepts."""

    model: ModelConfig
    data: DataConfig
    hw: HwConfig
    trainer: TrainerConfig
    budget: BudgetConfig
    lowering: LoweringConfig
    launcher: LauncherConfig
    tracking: TrackingConfig
    name: str | None = None  # part of the run folder's name; None: the model's
    seed: int = 1337
    dry_run: bool = False
    report: ReportChoice = ReportChoice.text
    runs_dir: str = "runs"
    calibration: str = "ledger"  # ledger | off | FILE
    resume: str | None = None  # a run folder, or `latest`
    plan: str | None = None  # a plan.json to replay
    action: Action = Action.train
    compare: CompareConfig = field(default_factory=CompareConfig)
    grid: GridConfig = field(default_factory=GridConfig)
    calibrate: CalibrateConfig = field(default_factory=CalibrateConfig)
