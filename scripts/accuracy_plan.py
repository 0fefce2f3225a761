"""The plan of somebody else's run: what a table states of it, the rest empty."""

from __future__ import annotations

from conf.choices import DataKind, JudgeOn, PolicyChoice, TrackingBackend, TrackingMode
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


def nameless_card(label: str) -> Card:
    """A card of which nothing is known but what people call it."""
    return Card(
        name="unknown", label=label, kind=CardKind.cuda, compute_capability=None, memory_bytes=None,
        bandwidth_bytes_per_second=None, peak_flops_per_second={}, has_bf16=True, watts=None, ecc=None,
        nvlink_bytes_per_second=None, p2p=None, pcie_generation=None, source="", as_of="",
    )  # fmt: skip


def plan_of_run(
    model: ModelPlan, card: Card, n_gpus: int, n_sequences: int, sequence_length: int, *, compiled: bool
) -> RunPlan:
    """One pass a step; what the sums do not ask for is a placeholder."""
    trainer = TrainerPlan(
        micro_batch_size=n_sequences, grad_accum_steps=1, tokens_per_step=n_gpus * n_sequences * sequence_length,
        sequence_length=sequence_length, n_steps=1000, precision=Precision.bf16, compile=compiled,
        activation_checkpointing=Checkpointing.none, learning_rate=6e-4, min_learning_rate=6e-5, n_warmup_steps=10,
        weight_decay=0.1, beta1=0.9, beta2=0.95, grad_clip=1.0, eval_interval=0, n_eval_sequences=1,
        checkpoint_interval=1000, keep_checkpoints=1, log_interval=10,
    )  # fmt: skip
    hw = HwPlan(
        card=card, n_nodes=1, n_gpus_per_node=n_gpus, declared="", detected=False, host_memory_bytes=None,
        n_cpu_cores=None, disk_bytes_per_second=None, alternative=None, host_watts=None, watts=None,
        offer=Offer(provider="", instance="", usd_per_hour=None, as_of="", source="", owned=False),
        electricity=Electricity(country="", usd_per_kwh=None, g_co2_per_kwh=None, pue=1.0, source="", as_of=""),
    )  # fmt: skip
    return RunPlan(
        name=model.name, created_at="", command="", seed=0, model=model, trainer=trainer, hw=hw, runs_dir="",
        data=DataPlan(
            kind=DataKind.bin, name="", source_path=None, dir="", val_fraction=0.1, prepared=True,
            n_train_tokens=None, n_val_tokens=None, dtype=None,
        ),
        budget=BudgetPlan(
            max_hours=None, max_cost_usd=None, max_energy_kwh=None, max_memory_fraction=0.95, judge_on=JudgeOn.mid
        ),
        lowering=LoweringPlan(policy=PolicyChoice.off, keep=(), allow_model=False, smaller_models=()),
        launcher=LauncherPlan(grace_seconds=60.0),
        tracking=TrackingPlan(
            backend=TrackingBackend.none, mode=TrackingMode.offline, project="", entity=None, notes="", tags=()
        ),
        software=Software(python="", torch=None, preflight=""),
    )  # fmt: skip
