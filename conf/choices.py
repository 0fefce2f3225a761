"""What may be chosen: one Enum a choice. Its names are what people type."""

from __future__ import annotations

from enum import Enum


class Family(Enum):
    """Architectures whose sums are modelled."""

    gpt2 = "gpt2"  # LayerNorm, GELU, learned positions, tied head
    llama = "llama"  # RMSNorm, SwiGLU, rotary positions, grouped key/value heads


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


class CheckpointingChoice(Enum):
    """`trainer.activation_checkpointing`: recompute each block in the backward pass, or keep everything."""

    none = "none"
    full = "full"


class JudgeOn(Enum):
    """Which edge of the band hours and money are judged on."""

    mid = "mid"
    high = "high"


class PolicyChoice(Enum):
    """What happens when the plan is over a budget."""

    auto = "auto"  # lower batch and precision, loudly
    refuse = "refuse"  # exit 3 and say what would help
    off = "off"  # launch anyway, warned


class ReportChoice(Enum):
    """`report=`: one screen, every term, or one JSON document."""

    text = "text"
    full = "full"
    json = "json"


class TrackingBackend(Enum):
    """`tracking=none|wandb`."""

    none = "none"
    wandb = "wandb"


class TrackingMode(Enum):
    """`auto` is online when a key is there and the server answers, else offline; never a prompt."""

    auto = "auto"
    online = "online"
    offline = "offline"


class Action(Enum):
    """`action=`: what the command is for."""

    train = "train"  # the bill, then the run
    compare = "compare"  # the same job on every card and offer of the catalog; launches nothing


class CompareBy(Enum):
    """What the offers are ranked by."""

    cost = "cost"
    time = "time"
    energy = "energy"
