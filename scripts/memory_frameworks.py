"""What does a code base do unless a table's row says otherwise? Documented defaults of public training code.

None: its users choose, so a row must say. The facts are read from the code that the comments name, never from
measurements.
"""

from __future__ import annotations

from typing import NamedTuple

from conf.choices import AdapterTargets


class Framework(NamedTuple):
    """One code base."""

    compiles: bool | None = None
    optimizer: str | None = None
    precision: str | None = None
    attention: str = "sdpa"
    recomputes: str = "none"  # none | selective | full
    keeps_logits: bool = False  # a variable of the loop holds them: `logits, loss = model(...)`, `outputs = model(...)`
    loss_inside_model: bool = True  # and so inside torch.compile(model)
    dropout: float = 0.0
    writes_gelu_out: bool = False  # in elementary operators, which autograd keeps one by one
    writes_norms_out: bool = False  # RMSNorm in elementary operators: an fp32 copy, and what the weight multiplies
    caches_keys: bool = False  # stacked keys and values among the outputs
    repeats_kv: bool = False  # shared keys and values are copied to every head
    upcasts_logits: bool = False  # to fp32 before the loss
    fuses_loss: bool = False  # one kernel, whose gradient takes the logits' place
    lora_rank: int = 8
    lora_targets: AdapterTargets = AdapterTargets.linear
    lora_dropout: bool = False
    lora_in_half: bool = False  # adapters in the weights' type; else fp32
    quantised_rest: int = 2  # bytes of embeddings, norms and head beside quantised weights
    shards_like: str = "fsdp2"  # fsdp1 | fsdp2 | deepspeed
    loads_whole_weights: bool = False  # on every rank, before they are shared out
    value_embeddings: bool = False  # further tables whose rows are added to the values


# modeling_llama.py and its relatives: LlamaRMSNorm and apply_rotary_pos_emb in elementary operators, repeat_kv before
# the fused kernel, `logits.float()` in the loss, `outputs` held by the Trainer. TrainingArguments: adamw_torch, which
# PyTorch runs as foreach. PEFT's prepare_model_for_kbit_training turns what is not quantised to fp32.
TRANSFORMERS = Framework(
    False, "AdamW", "bf16", upcasts_logits=True, writes_norms_out=True, repeats_kv=True, lora_dropout=True,
    quantised_rest=4, shards_like="deepspeed",
)  # fmt: skip
# Before 4.0 (modeling_gpt2.py): gelu_new in Python, `presents` among the outputs, GPT2Config's dropout
OLD_TRANSFORMERS = Framework(
    False, "AdamW", "fp32", "eager", keeps_logits=True, dropout=0.1, writes_gelu_out=True, caches_keys=True
)
FRAMEWORKS = {
    # train.py of karpathy/nanoGPT: dtype = bfloat16 or float16 by autocast, compile = True, fused AdamW
    "nanoGPT": Framework(True, "AdamW fused", "bf16-autocast", keeps_logits=True),
    "build-nanogpt": Framework(True, "AdamW fused", "bf16-autocast", keeps_logits=True),
    # train.py of karpathy/autoresearch: compiled, Muon and AdamW in kernels of their own, loss inside the model
    "autoresearch": Framework(True, "Muon", "bf16-autocast", value_embeddings=True),
    # A hand-written loop: logits = model(x), then F.cross_entropy
    "PyTorch": Framework(False, loss_inside_model=False),
    "transformers 2": OLD_TRANSFORMERS,
    "transformers 3": OLD_TRANSFORMERS,
    # gradient_checkpointing is its default; adapters of rank 8 on every linear
    "ms-swift": TRANSFORMERS._replace(recomputes="full"),
    # finetune_*.sh: --gradient_checkpointing, flash attention; finetune.py: rank 64, dropout 0.05
    "Qwen finetune.py": TRANSFORMERS._replace(recomputes="full", lora_rank=64, repeats_kv=False),
    "HF Trainer+DeepSpeed": TRANSFORMERS._replace(precision="fp16 (DeepSpeed)"),
    # method_comparison: LoraConfig(r=32), no dropout
    "PEFT": TRANSFORMERS._replace(lora_rank=32, lora_targets=AdapterTargets.query_value, lora_dropout=False),
    # recipes: logits.float() in chunks of CEWithChunkedOutputLoss, fused RMSNorm, compiled apart
    # enable_activation_checkpointing in its configurations
    "torchtune": Framework(
        recomputes="full",
        optimizer="AdamW fused",
        upcasts_logits=True,
        loss_inside_model=False,
        lora_in_half=True,
        repeats_kv=True,
    ),
    # finetune/lora.py: bf16-true, foreach AdamW, RMSNorm written out, rank 8 on queries and values, dropout 0.05, the
    # head's loss in chunks of 128 tokens; pretrain.py: FSDP
    "litgpt": Framework(
        False,
        "AdamW",
        writes_norms_out=True,
        repeats_kv=True,
        lora_targets=AdapterTargets.query_value,
        lora_dropout=True,
        lora_in_half=True,
        shards_like="fsdp1",
        loads_whole_weights=True,
    ),
    # FSDP1 with mixed_precision PURE, flash attention and its fused cross entropy (loss_fn), LayerNorm in 16 bit
    "llm-foundry": Framework(False, "AdamW", fuses_loss=True, shards_like="fsdp1"),
    # FSDP2, compiled blocks, the loss compiled apart; activation_checkpoint.mode selective by default
    "torchtitan": Framework(True, "AdamW fused", "bf16 mixed", recomputes="selective"),
}


def framework_of(name: str) -> Framework:
    """By the beginning of its name; the longest counts. Unknown code: nothing is assumed."""
    found = max((known for known in FRAMEWORKS if name.startswith(known)), key=len, default=None)
    return Framework() if found is None else FRAMEWORKS[found]
