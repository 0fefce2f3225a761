"""Builders of valid plans, so that a test names only what it is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from conf.choices import (
    Activation,
    DataKind,
    Family,
    JudgeOn,
    Norm,
    PolicyChoice,
    Positions,
    Tokenizer,
    TrackingBackend,
    TrackingMode,
)
from preflight.hw_plan import Card, CardKind, Electricity, HwPlan, Offer
from preflight.plan import (
    BudgetPlan,
    Checkpointing,
    DataPlan,
    LauncherPlan,
    LoweringPlan,
    ModelPlan,
    Precision,
    RunPlan,
    Software,
    TrackingPlan,
    TrainerPlan,
)
from trainers.importing import few_collections

STARTING = few_collections()
STARTING.__enter__()  # while torch, hypothesis and all test modules are imported


def pytest_collection_finish() -> None:
    STARTING.__exit__(None, None, None)


GPT2_124M = ModelPlan(
    name="gpt2_124m", family=Family.gpt2, n_layer=12, n_head=12, n_kv_head=12, n_embd=768, d_ff=3072,
    vocab_size=50304, tokenizer=Tokenizer.gpt2, tied_head=True, bias=False, dropout=0.0,
)  # fmt: skip
TINY = ModelPlan(
    name="tiny", family=Family.gpt2, n_layer=2, n_head=2, n_kv_head=2, n_embd=32, d_ff=128,
    vocab_size=256, tokenizer=Tokenizer.byte, tied_head=True, bias=False, dropout=0.0,
)  # fmt: skip
LLAMA_7B = ModelPlan(
    name="llama_7b", family=Family.llama, n_layer=32, n_head=32, n_kv_head=32, n_embd=4096, d_ff=11008,
    vocab_size=32000, tokenizer=Tokenizer.other, tied_head=False, bias=False, dropout=0.0,
    norm=Norm.rmsnorm, positions=Positions.rotary, activation=Activation.swiglu,
)  # fmt: skip
MODELS = {model.name: model for model in (GPT2_124M, TINY, LLAMA_7B)}

RTX_4090 = Card(
    name="4090", label="RTX 4090 24 GB", kind=CardKind.cuda, compute_capability=8.9, memory_bytes=25_247_000_000,
    bandwidth_bytes_per_second=1008e9,
    peak_flops_per_second={"fp32": 82.6e12, "tf32": 82.6e12, "bf16": 165.2e12, "fp16": 165.2e12},
    has_bf16=True, watts=450.0, ecc=False, nvlink_bytes_per_second=0.0, p2p=False, pcie_generation=4,
    source="test", as_of="2026-11-01",
)  # fmt: skip
A100_80GB = replace(
    RTX_4090, name="a100_80gb", label="A100 SXM4 80 GB", compute_capability=8.0, memory_bytes=84_987_740_160,
    bandwidth_bytes_per_second=2039e9,
    peak_flops_per_second={"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp16": 312e12},
    watts=400.0, ecc=True, nvlink_bytes_per_second=600e9, p2p=True,
)  # fmt: skip
CPU = Card(
    name="cpu", label="test CPU, 2 cores", kind=CardKind.cpu, compute_capability=None, memory_bytes=16 * 2**30,
    bandwidth_bytes_per_second=20e9, peak_flops_per_second={"fp32": 200e9, "bf16": 400e9},
    has_bf16=True, watts=None, ecc=None, nvlink_bytes_per_second=None, p2p=None, pcie_generation=None,
    source="test", as_of="2026-11-01",
)  # fmt: skip
CARDS = {card.name: card for card in (RTX_4090, A100_80GB, CPU)}


def build_plan(
    *,
    model: str | ModelPlan = "gpt2_124m",
    card: str | Card = "4090",
    n_gpus: int = 1,
    n_nodes: int = 1,
    micro_batch_size: int = 12,
    grad_accum_steps: int = 1,
    sequence_length: int = 1024,
    n_steps: int = 1000,
    precision: Precision = Precision.bf16,
    compile: bool = False,
    checkpointing: Checkpointing = Checkpointing.none,
    usd_per_hour: float | None = 1.36,
    budget: dict[str, Any] | None = None,
    lowering: dict[str, Any] | None = None,
    trainer: dict[str, Any] | None = None,
    **plan_fields: Any,
) -> RunPlan:
    """A plan of `n_nodes` x `n_gpus`; `budget`, `lowering`, `trainer` and the rest override single fields."""
    shape = MODELS[model] if isinstance(model, str) else model
    the_card = CARDS[card] if isinstance(card, str) else card
    on_cpu = the_card.kind is CardKind.cpu
    plan = RunPlan(
        name=shape.name, created_at="2026-11-30T12:00:00+00:00", command="python launch.py", seed=1337, model=shape,
        data=DataPlan(
            kind=DataKind.stdlib, name="stdlib", source_path=None, dir="/data/stdlib", val_fraction=0.1, prepared=True,
            n_train_tokens=20_000_000, n_val_tokens=2_000_000, dtype="uint16",
        ),
        hw=HwPlan(
            card=the_card, n_nodes=n_nodes, n_gpus_per_node=n_gpus, declared=f"{n_gpus}x{the_card.name}",
            detected=on_cpu, host_memory_bytes=16 * 2**30 if on_cpu else None, n_cpu_cores=2 if on_cpu else None,
            disk_bytes_per_second=None,
            offer=Offer(
                provider="owned" if on_cpu else "runpod", instance=f"{n_gpus}x{the_card.label}",
                usd_per_hour=0.0 if on_cpu else usd_per_hour, as_of="2026-11-01", source="test", owned=on_cpu,
            ),
            alternative=None,
            electricity=Electricity(
                country="world", usd_per_kwh=0.167, g_co2_per_kwh=475.0, pue=1.0, source="test", as_of="2025-12-31"
            ),
            host_watts=None, watts=None,
        ),
        trainer=TrainerPlan(
            micro_batch_size=micro_batch_size, grad_accum_steps=grad_accum_steps,
            tokens_per_step=micro_batch_size * grad_accum_steps * sequence_length * n_gpus * n_nodes,
            sequence_length=sequence_length, n_steps=n_steps, precision=precision, compile=compile,
            activation_checkpointing=checkpointing, learning_rate=6e-4, min_learning_rate=6e-5,
            n_warmup_steps=max(1, n_steps // 50), weight_decay=0.1, beta1=0.9, beta2=0.95, grad_clip=1.0,
            eval_interval=max(1, n_steps // 10), n_eval_sequences=48 * n_gpus * n_nodes,
            checkpoint_interval=max(1, n_steps // 5), keep_checkpoints=2, log_interval=10,
        ),
        budget=BudgetPlan(
            max_hours=24.0, max_cost_usd=None, max_energy_kwh=None, max_memory_fraction=0.95, judge_on=JudgeOn.mid
        ),
        lowering=LoweringPlan(policy=PolicyChoice.auto, keep=(), allow_model=False, smaller_models=()),
        launcher=LauncherPlan(grace_seconds=60.0),
        tracking=TrackingPlan(
            backend=TrackingBackend.none, mode=TrackingMode.offline, project="test", entity=None, notes="", tags=()
        ),
        software=Software(python="3.11.7", torch="2.13.0", preflight="0.1.0"),
        runs_dir="/runs",
    )  # fmt: skip
    return replace(
        plan,
        budget=replace(plan.budget, **(budget or {})),
        lowering=replace(plan.lowering, **(lowering or {})),
        trainer=replace(plan.trainer, **(trainer or {})),
        **plan_fields,
    )


@pytest.fixture
def make_plan() -> Callable[..., RunPlan]:
    """The builder above, as a fixture."""
    return build_plan
