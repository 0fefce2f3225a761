"""Every option of the configuration moves the estimate, or says here why it must not."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, get_type_hints

import pytest

from conf.schema import Config
from launch import bill
from preflight.estimate import estimate

BASE = (
    "model=gpt2_124m",
    "hw.card=4090",
    "hw.n_gpus_per_node=4",
    "data=openwebtext",
    "calibration=off",
    "lowering.policy=off",
    "tracking=none",
)
HW = "hw.card=4090 hw.n_gpus_per_node=4"

# Option -> a value that must change something, with what it needs beside it (the base has the latter alone).
CHANGES = {
    "model.n_layer": ("13", ""), "model.n_head": ("6", "trainer.attention=eager"),
    "model.n_kv_head": ("4", ""), "model.n_embd": ("1536", ""), "model.d_ff": ("2048", ""),
    "model.vocab_size": ("51200", ""), "model.tied_head": ("false", ""), "model.bias": ("true", ""),
    "model.qkv_bias": ("true", ""), "model.dropout": ("0.1", ""), "model.norm": ("rmsnorm", ""),
    "model.positions": ("rotary", ""), "model.activation": ("swiglu", ""), "model.qk_norm": ("true", ""),
    "model.head_dim": ("32", ""), "model.n_positions": ("4096", ""),
    "model.recipe.sequence_length": ("512", ""), "model.recipe.micro_batch_size": ("4", ""),
    "model.recipe.tokens_per_step": ("983040", ""), "model.recipe.total_tokens": ("1000000000", ""),
    "hw.card": ("a100_80gb", "hw.n_gpus_per_node=4"), "hw.n_nodes": ("2", ""), "hw.n_gpus_per_node": ("2", ""),
    "hw.price_usd_per_hour": ("77.0", ""), "hw.owned": ("true", ""),
    "hw.country": ("germany", "hw.owned=true hw.watts=2000"),
    "hw.electricity_usd_per_kwh": ("0.9", "hw.owned=true hw.watts=2000"), "hw.watts": ("2345.0", ""),
    "hw.purchase_usd": ("9000.0", "hw.owned=true"),
    "hw.network_gbit_per_second": ("1.0", "hw.n_nodes=2"),
    "trainer.micro_batch_size": ("4", ""), "trainer.tokens_per_step": ("983040", ""),
    "trainer.sequence_length": ("512", ""), "trainer.n_steps": ("1234", ""), "trainer.total_tokens": ("1000000000", ""),
    "trainer.precision": ("fp32", ""), "trainer.compile": ("false", ""),
    "trainer.activation_checkpointing": ("full", ""), "trainer.attention": ("eager", ""),
    "trainer.loss_chunk_tokens": ("1024", ""), "trainer.parallel": ("zero3", ""),
    "trainer.bucket_views": ("false", ""), "trainer.adapter": ("lora", ""),
    "trainer.lora_rank": ("64", "trainer.adapter=lora"), "trainer.lora_targets": ("attention", "trainer.adapter=lora"),
    "trainer.optimizer": ("sgd", ""), "trainer.optimizer_kernel": ("foreach", "trainer.micro_batch_size=1"),
    "trainer.eval_interval": ("7", ""), "trainer.eval_micro_batch_size": ("64", ""),
    "trainer.eval_tokens": ("4915200", ""), "trainer.checkpoint_interval": ("7", ""),
    "trainer.keep_checkpoints": ("9", ""),
}  # fmt: skip

# Option, or the beginning of a group's -> why the estimate must not move.
EXEMPT = {
    "model.name": "a label",
    "model.family": "what its models are made of is said by norm, positions, activation and the rest",
    "model.tokenizer": "must agree with the data; the vocabulary's size counts",
    "model.rope_theta": "the angles' values, not their number",
    "model.norm_eps": "a constant in a kernel",
    "model.path": "the shape in that folder counts, field by field",
    "model.recipe.learning_rate": "a number in the optimizer",
    "data.": "which tokens: their number decides whether there are enough (checks), not what a step takes",
    "hw.custom.": "numbers of a card that the catalog lacks: tests/preflight/test_resolve_hw.py",
    "hw.spot": "another price where the catalog has one, and interruptions: tests/preflight/test_cost.py",
    "hw.interruptions_per_day": "of spot machines: tests/preflight/test_cost.py",
    "hw.lifetime_years": "of a machine with a purchase price: tests/preflight/test_cost.py",
    "hw.hours_per_year": "of a machine with a purchase price: tests/preflight/test_cost.py",
    "trainer.float32_matmul_precision": "rounding inside fp32 matmuls; bytes are the same, a card's rate is tf32's own",
    "trainer.init_from": "the same number of weights, read instead of drawn",
    "trainer.lora_alpha": "a factor",
    "trainer.learning_rate": "a number in the optimizer",
    "trainer.muon_learning_rate": "a number in the optimizer",
    "trainer.min_learning_rate_fraction": "a number in the optimizer",
    "trainer.warmup_fraction": "a number in the optimizer",
    "trainer.weight_decay": "a number in the optimizer",
    "trainer.beta": "numbers in the optimizer",
    "trainer.grad_clip": "a norm of gradients that are there anyway, scaled in place",
    "trainer.keep_best": "which of the kept checkpoints is never deleted",
    "trainer.save_beside": "of a processor: tests/preflight/test_memory_options.py; of a card: host memory",
    "trainer.max_nonfinite_steps": "when a broken run ends",
    "trainer.log_interval": "a line of text",
    "budget.": "limits that the estimate is held against",
    "lowering.": "what may be changed when a limit is broken",
    "launcher.": "what happens after a signal or before a limit",
    "tracking.": "where numbers go; W&B's library in the process: tests/preflight/test_memory.py",
    "compare.": "of action=compare",
    "calibrate.": "of action=calibrate",
    "grid.": "of -m",
}
ROOT = "options of the command itself: what it is called, where it writes, whether it runs"


def options(cls: type, prefix: str = "") -> list[str]:
    """Every path of the configuration."""
    hints = get_type_hints(cls)
    paths: list[str] = []
    for field in dataclasses.fields(cls):
        kind: Any = hints[field.name]
        path = f"{prefix}{field.name}"
        paths += options(kind, f"{path}.") if dataclasses.is_dataclass(kind) else [path]
    return paths


def exemption(path: str) -> str | None:
    """Why it may be without effect."""
    if "." not in path:
        return ROOT
    return next((why for start, why in EXEMPT.items() if path.startswith(start)), None)


@cache
def bill_of(beside: str) -> Any:
    """The estimate with these options."""
    return estimate(bill(*BASE, *beside.split()).plan)


@pytest.mark.parametrize("path", options(Config))
def test_option_moves_the_estimate_or_is_exempt(path):
    if path not in CHANGES:
        assert exemption(path), f"{path} is neither known to move the estimate nor exempt: say which, and why"
        return
    value, beside = CHANGES[path]
    assert bill_of(f"{beside} {path}={value}") != bill_of(beside)


def test_dropout_moves_time_as_well_as_memory():
    without, dropped = bill_of(""), bill_of("model.dropout=0.1")
    assert dropped.step.seconds.mid > without.step.seconds.mid
    assert dropped.memory.allocated.mid > without.memory.allocated.mid
