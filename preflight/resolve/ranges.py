"""Which values may a number of the configuration take, whatever the others are?"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from conf.schema import Config
from preflight.resolve.resolution import Resolution, value_at, with_value

NO_LIMIT = math.inf
MAX_COUNT = 10**15  # tokens and steps: above any run there was, below what breaks formats
MAX_TOKENS_PER_STEP = 10**9  # the largest published global batches are below 10^8


class Range(NamedTuple):
    """Closed at both ends unless said otherwise."""

    low: float
    high: float
    fix: str  # a value that works
    is_low_open: bool = False
    is_high_open: bool = False

    def admits(self, value: float) -> bool:
        """NaN is outside of everything."""
        above = value > self.low if self.is_low_open else value >= self.low
        below = value < self.high if self.is_high_open else value <= self.high
        return above and below and math.isfinite(value)

    def __str__(self) -> str:
        low = f"{'above' if self.is_low_open else 'at least'} {self.low:,g}"
        high = f"{'below' if self.is_high_open else 'at most'} {self.high:,.15g}"
        return low if self.high == NO_LIMIT else f"{low} and {high}"


def _count(high: float, fix: str = "1") -> Range:
    return Range(1, high, fix)


def _positive(fix: str, high: float = NO_LIMIT) -> Range:
    return Range(0, high, fix, is_low_open=True)


RANGES = {
    "model.n_layer": _count(10_000),
    "model.n_head": _count(10_000),
    "model.n_kv_head": _count(10_000, "null"),
    "model.n_embd": _count(1_000_000, "768"),
    "model.d_ff": _count(10_000_000, "null"),
    "model.vocab_size": Range(2, 10_000_000, "50304"),
    "model.dropout": Range(0, 1, "0", is_high_open=True),
    "model.head_dim": _count(10_000, "null"),
    "model.rope_theta": Range(1, 10**12, "10000", is_low_open=True),
    "model.norm_eps": _positive("1e-5", 1),
    "model.n_positions": _count(10**8, "null"),
    "model.recipe.sequence_length": _count(10**8, "1024"),
    "model.recipe.micro_batch_size": _count(10**8),
    "model.recipe.tokens_per_step": _count(MAX_TOKENS_PER_STEP, "491520"),
    "model.recipe.total_tokens": _count(MAX_COUNT, "10000000000"),
    "model.recipe.learning_rate": _positive("6e-4", 1000),
    "data.val_fraction": Range(0, 1, "0.1", is_low_open=True, is_high_open=True),
    "hw.n_nodes": _count(100_000),
    "hw.n_gpus_per_node": _count(1024),
    "hw.network_gbit_per_second": _positive("null", 10**6),
    "hw.price_usd_per_hour": Range(0, 10**7, "null"),
    "hw.interruptions_per_day": Range(0, 1000, "null"),
    "hw.purchase_usd": Range(0, 10**9, "null"),
    "hw.lifetime_years": _positive("4", 100),
    "hw.hours_per_year": _positive("2000", 8784),
    "hw.electricity_usd_per_kwh": Range(0, 1000, "null"),
    "hw.watts": _positive("null", 10**7),
    "hw.custom.memory_gib": _positive("24", 10**6),
    "hw.custom.bf16_tflops": _positive("null", 10**7),
    "hw.custom.fp16_tflops": _positive("null", 10**7),
    "hw.custom.fp32_tflops": _positive("null", 10**7),
    "hw.custom.bandwidth_gb_per_second": _positive("1000", 10**7),
    "hw.custom.watts": _positive("null", 10**6),
    "hw.custom.compute_capability": _positive("8.0", 100),
    "trainer.micro_batch_size": _count(10**8),
    "trainer.tokens_per_step": _count(MAX_TOKENS_PER_STEP, "null"),
    "trainer.sequence_length": _count(10**8, "null"),
    "trainer.n_steps": _count(MAX_COUNT, "null"),
    "trainer.total_tokens": _count(MAX_COUNT, "null"),
    "trainer.loss_chunk_tokens": Range(0, 10**9, "0"),
    "trainer.eval_micro_batch_size": _count(10**8, "null"),
    "trainer.lora_rank": _count(100_000, "8"),
    "trainer.lora_alpha": _positive("16", 10**6),
    "trainer.muon_learning_rate": _positive("0.02", 1000),
    "trainer.learning_rate": _positive("null", 1000),
    "trainer.min_learning_rate_fraction": Range(0, 1, "0.1"),
    "trainer.warmup_fraction": Range(0, 1, "0.02"),
    "trainer.weight_decay": Range(0, 1000, "0.1"),
    "trainer.beta1": Range(0, 1, "0.9", is_high_open=True),
    "trainer.beta2": Range(0, 1, "0.95", is_high_open=True),
    "trainer.grad_clip": Range(0, 10**6, "1.0"),
    "trainer.eval_interval": Range(0, MAX_COUNT, "null"),
    "trainer.eval_tokens": _count(MAX_COUNT, "null"),
    "trainer.checkpoint_interval": _count(MAX_COUNT, "null"),
    "trainer.keep_checkpoints": _count(10_000, "2"),
    "trainer.max_nonfinite_steps": _count(10_000, "20"),
    "trainer.log_interval": _count(MAX_COUNT, "null"),
    "budget.max_hours": _positive("24", 10**7),
    "budget.max_cost_usd": _positive("null", 10**12),
    "budget.max_energy_kwh": _positive("null", 10**12),
    "budget.max_memory_fraction": _positive("0.95", 1),
    "budget.max_disk_gib": _positive("null", 10**9),
    "budget.max_host_memory_gib": _positive("null", 10**9),
    "compare.max_hours": _positive("null", 10**7),
    "compare.max_gpus": _count(1024, "null"),
    "calibrate.max_seconds": Range(5, 3600, "60"),
    "calibrate.max_steps": _count(1000, "20"),
    "launcher.time_limit_hours": _positive("null", 10**6),
    "launcher.grace_seconds": _positive("120", 10**6),
    "seed": Range(0, 2**32 - 1, "1337"),
}


def check_ranges(config: Config, resolution: Resolution) -> Config:
    """Every number outside its range is refused; the copy that comes back has the proposed values in their place."""
    for path, allowed in RANGES.items():
        value = value_at(config, path)
        if value is None or allowed.admits(value):
            continue
        resolution.refuse(path, value, f"must be {allowed}", f"{path}={allowed.fix}")
        config = with_value(config, path, _replacement(allowed.fix, value))
    return config


def _replacement(fix: str, value: Any) -> Any:
    if fix == "null":
        return None
    return int(fix) if isinstance(value, int) else float(fix)
