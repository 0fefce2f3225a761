"""What plan was a W&B run of another trainer, and what did it measure? nanoGPT and Hugging Face's Trainer.

nanoGPT (github.com/karpathy/nanoGPT, train.py) logs its globals as config and `mfu` in percent of an A100's 312e12;
the Trainer (github.com/huggingface/transformers) logs TrainingArguments and model config, and `train_steps_per_second`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch import bill
from preflight.catalog import find_card
from preflight.params import count_params
from preflight.plan import RunPlan
from scripts.past_runs import PastRun

NANOGPT = (
    "n_layer",
    "n_head",
    "n_embd",
    "block_size",
    "batch_size",
    "gradient_accumulation_steps",
    "max_iters",
    "dtype",
)
NANOGPT_PEAK_FLOPS_PER_SECOND = 312e12
TRAINER = ("per_device_train_batch_size", "gradient_accumulation_steps")
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
# The Trainer's names: GPT-2's config, then that of Llama and its kin.
SHAPE = {
    "n_layer": ("n_layer", "num_hidden_layers"),
    "n_head": ("n_head", "num_attention_heads"),
    "n_kv_head": ("num_key_value_heads",),
    "n_embd": ("n_embd", "hidden_size"),
    "d_ff": ("n_inner", "intermediate_size"),
    "vocab_size": ("vocab_size",),
}
LENGTHS = ("max_length", "max_seq_length", "block_size", "n_ctx")
Measured = dict[str, float]


class NotUnderstood(Exception):
    """Why the run is left out."""


def understood(run: PastRun, card: str | None) -> tuple[RunPlan, Measured]:
    """The plan as preflight would have made it, and the numbers that the run left."""
    if all(name in run.config for name in NANOGPT):
        return _nanogpt(run, card)
    if all(name in run.config for name in TRAINER):
        return _trainer(run, card)
    raise NotUnderstood("neither preflight's, nanoGPT's nor the Hugging Face Trainer's config")


def _nanogpt(run: PastRun, card: str | None) -> tuple[RunPlan, Measured]:
    c = run.config
    passes = int(c["gradient_accumulation_steps"])  # of all ranks together
    n_gpus = max(1, run.n_gpus)
    plan = _plan(
        _machine(run, card),
        {
            "model": "gpt2_124m",
            **{f"model.{name}": c[name] for name in ("n_layer", "n_head", "n_embd")},
            "model.d_ff": 4 * int(c["n_embd"]),
            "model.dropout": c.get("dropout", 0.0),
            "trainer.sequence_length": c["block_size"],
            "trainer.micro_batch_size": c["batch_size"],
            "trainer.tokens_per_step": passes * int(c["batch_size"]) * int(c["block_size"]),
            "trainer.n_steps": c["max_iters"],
            "trainer.precision": PRECISIONS[c["dtype"]],
            "trainer.compile": str(bool(c.get("compile", True))).lower(),
        },
    )
    mfu, done = _number(run.summary, "mfu"), _number(run.summary, "iter")
    if not mfu or mfu < 0 or not done:
        raise NotUnderstood("its summary has no mfu or no iter")
    counts = count_params(plan.model, plan.trainer.sequence_length)
    shape, length = plan.model, plan.trainer.sequence_length
    flops_per_token = 6 * (counts.total - length * shape.n_embd) + 12 * shape.n_layer * shape.n_embd * length
    flops = flops_per_token * length * plan.trainer.micro_batch_size * passes / n_gpus
    return plan, {
        "step_seconds": flops / (mfu / 100 * NANOGPT_PEAK_FLOPS_PER_SECOND),
        "n_steps_done": done,
    }


def _trainer(run: PastRun, card: str | None) -> tuple[RunPlan, Measured]:
    c, n_gpus = run.config, max(1, run.n_gpus)
    length = next((int(c[name]) for name in LENGTHS if c.get(name)), None)
    done = _number(run.summary, "train/global_step")
    pace = _number(run.summary, "train/train_steps_per_second", "train_steps_per_second")
    if length is None or not done or not pace:
        raise NotUnderstood("its config has no sequence length, or its summary no steps per second")
    is_llama = bool(c.get("hidden_act") == "silu" or c.get("num_key_value_heads"))
    found = {name: next((c[key] for key in keys if c.get(key)), None) for name, keys in SHAPE.items()}
    micro, passes = int(c["per_device_train_batch_size"]), int(c["gradient_accumulation_steps"])
    plan = _plan(
        _machine(run, card),
        {
            "model": "llama_125m" if is_llama else "gpt2_124m",
            **{f"model.{name}": value for name, value in found.items() if value},
            "trainer.sequence_length": length,
            "trainer.micro_batch_size": micro,
            "trainer.tokens_per_step": micro * passes * length * n_gpus,
            "trainer.n_steps": int(done),
            "trainer.precision": "bf16" if c.get("bf16") else "fp16" if c.get("fp16") else "fp32",
            "trainer.compile": str(bool(c.get("torch_compile"))).lower(),
            "trainer.activation_checkpointing": "full" if c.get("gradient_checkpointing") else "none",
        },
    )
    return plan, {"step_seconds": 1 / pace, "n_steps_done": done}


def _machine(run: PastRun, card: str | None) -> str:
    """`8xa100_80gb`: what was said, else what the driver called the card."""
    if card is not None:
        return card if "x" in card.partition("_")[0] else f"{max(1, run.n_gpus)}x{card}"
    if not run.gpu:
        raise NotUnderstood("its machine is not told: give --card, such as --card 8xa100_80gb")
    try:
        return f"{max(1, run.n_gpus)}x{find_card(run.gpu).name}"
    except KeyError:
        raise NotUnderstood(f"{run.gpu} is not in the catalog: give --card") from None


def _plan(machine: str, wanted: Mapping[str, Any]) -> RunPlan:
    """Through the same door as a command line, budgets and lowerings off."""
    overrides = [f"{name}={value}" for name, value in wanted.items()]
    free = ["budget.max_hours=null", "lowering.policy=off", "calibration=off", "tracking=wandb"]
    answer = bill(*overrides, f"hw={machine}", *free)
    return answer.asked_plan or answer.plan


def _number(summary: Mapping[str, Any], *names: str) -> float | None:
    """The first that is one."""
    found = (summary.get(name) for name in names)
    return next(
        (float(value) for value in found if isinstance(value, int | float) and not isinstance(value, bool)), None
    )
