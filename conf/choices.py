"""What may be chosen: one Enum a choice. Its names are what people type."""

from __future__ import annotations

from enum import Enum


class Family(Enum):
    """Architectures whose sums are modelled."""

    gpt2 = "gpt2"  # LayerNorm, GELU, learned positions, tied head
    llama = "llama"  # RMSNorm, SwiGLU, rotary positions, grouped key/value heads


class Norm(Enum):
    """`model.norm`."""

    layernorm = "layernorm"
    rmsnorm = "rmsnorm"


class Positions(Enum):
    """`model.positions`: a table that is added to the tokens, or rotation of queries and keys (RoPE)."""

    learned = "learned"
    rotary = "rotary"


class Activation(Enum):
    """`model.activation` of the MLP; SwiGLU has a third matrix, the gate."""

    gelu = "gelu"
    gelu_tanh = "gelu_tanh"  # its approximation, with which OpenAI trained GPT-2
    relu2 = "relu2"  # squared ReLU
    swiglu = "swiglu"


class Optimizer(Enum):
    """`trainer.optimizer`: what is kept for each parameter differs."""

    adamw = "adamw"  # two fp32 moments
    adamw_8bit = "adamw_8bit"  # two moments of a byte each
    sgd = "sgd"  # one momentum buffer
    adafactor = "adafactor"  # row and column statistics
    muon = "muon"  # one momentum buffer for the matrices of the blocks; AdamW for the rest


class OptimizerKernel(Enum):
    """`trainer.optimizer_kernel`: one kernel for all tensors, lists of tensors, or one tensor at a time."""

    fused = "fused"
    foreach = "foreach"
    loop = "loop"


class Parallel(Enum):
    """`trainer.parallel`: what the ranks share out among them."""

    ddp = "ddp"  # nothing: every rank holds all
    zero1 = "zero1"  # optimizer states
    zero2 = "zero2"  # and gradients; weights stay gathered (FSDP2 without resharding after the forward pass)
    zero3 = "zero3"  # and weights (FSDP2)


class Attention(Enum):
    """`trainer.attention`: PyTorch's fused kernel, or matmul, softmax, matmul."""

    sdpa = "sdpa"
    eager = "eager"


class Adapter(Enum):
    """`trainer.adapter`: what is trained, all weights or low-rank updates of frozen ones."""

    none = "none"
    lora = "lora"
    qlora = "qlora"  # frozen weights in 4 bits


class AdapterTargets(Enum):
    """`trainer.lora_targets`: which linears get an adapter."""

    attention = "attention"  # query, key, value, output
    query_value = "query_value"  # as in the LoRA paper
    linear = "linear"  # all of a block's


class Float32Matmul(Enum):
    """`trainer.float32_matmul_precision`, in PyTorch's own words."""

    highest = "highest"
    high = "high"  # TF32, or three bf16 products
    medium = "medium"  # one bf16 product


class Tokenizer(Enum):
    """How text becomes token ids; a model and its data must agree."""

    byte = "byte"  # 256 ids, no files needed
    gpt2 = "gpt2"  # 50,257 BPE ids (tiktoken)
    other = "other"  # ready token files only


class DataKind(Enum):
    """Where the tokens come from."""

    auto = "auto"  # byte-level models: stdlib; BPE models: openwebtext
    stdlib = "stdlib"
    text = "text"
    bin = "bin"
    shakespeare = "shakespeare"
    openwebtext = "openwebtext"
    fineweb_edu = "fineweb_edu"


class PrecisionChoice(Enum):
    """`trainer.precision`; `auto` takes what the hardware does well."""

    auto = "auto"
    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"
    fp16 = "fp16"
    bf16_pure = "bf16_pure"  # weights, gradients and optimizer states in bf16 too


class CheckpointingChoice(Enum):
    """`trainer.activation_checkpointing`: what is recomputed in the backward pass."""

    none = "none"
    selective = "selective"  # cheap operations; results of matmuls and of attention are kept
    full = "full"  # whole blocks


class JudgeOn(Enum):
    """Which edge of the band hours and money are judged on."""

    mid = "mid"
    high = "high"


class Enforce(Enum):
    """`budget.enforce`: what happens when a run in progress is at a budget, or sure to break one."""

    stop = "stop"  # save a checkpoint and end with exit code 6
    warn = "warn"  # say so, once


class OnOom(Enum):
    """`lowering.on_oom`: what happens when memory runs out although the bill said that it would do."""

    stop = "stop"  # exit 5, explained
    relaunch = "relaunch"  # each rung is lowered once, and the run goes on from its last checkpoint


class PolicyChoice(Enum):
    """What happens when the plan is over a budget."""

    auto = "auto"  # lower batch and precision, loudly
    refuse = "refuse"  # exit 3 and say what would help
    off = "off"  # launch anyway, warned


class Show(Enum):
    """`lowering.show`: when the table of everything that could be lowered is printed."""

    refused = "refused"  # with every no
    ladder = "ladder"  # always


class ReportChoice(Enum):
    """`report=`: one screen, every term, or one JSON document."""

    text = "text"
    full = "full"
    json = "json"


class TrackingBackend(Enum):
    """`tracking=none|wandb|trackio`."""

    none = "none"
    wandb = "wandb"
    trackio = "trackio"  # local-first: SQLite files and a dashboard of one's own


class TrackingMode(Enum):
    """`auto` is online when a key is there and the server answers, else offline; never a prompt."""

    auto = "auto"
    online = "online"
    offline = "offline"


class Action(Enum):
    """`action=`: what the command is for."""

    train = "train"  # the bill, then the run
    compare = "compare"  # the same job on every card and offer of the catalog; launches nothing
    calibrate = "calibrate"  # measure this machine and a few real steps, so that later bills are surer


class Currency(Enum):
    """`budget.currency`: what money is shown in; limits and prices stay USD, as they are sold."""

    usd = "usd"
    cny = "cny"


class CompareBy(Enum):
    """What the offers are ranked by."""

    cost = "cost"
    time = "time"
    energy = "energy"
