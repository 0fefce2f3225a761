"""How long from the first import to the last byte written? Everything the machine is paid for, term by term.

Steps alone make a short job's bill wrong: a 60-second run spends a fifth of its time starting, evaluating and saving.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log2, sqrt

from conf.choices import DataKind, Tokenizer, TrackingBackend
from preflight.band import Band
from preflight.hw_plan import CardKind, Interruptions
from preflight.plan import RunPlan
from preflight.step_time.step import StepTimeEstimate
from preflight.units import SECONDS_PER_HOUR, format_runs

# Start-up: interpreter, `import torch` (2-3 s from a warm disk cache), W&B, CUDA context, process group, model, data.
STARTUP_SECONDS = {CardKind.cpu: 5.0, CardKind.mps: 8.0}
STARTUP_SECONDS_ON_CARDS = 15.0
RANKS_STARTUP_SECONDS = 2.0  # for each doubling of the ranks: torchrun, process group, NCCL's topology search
NODES_STARTUP_SECONDS = 10.0  # for each doubling of the nodes: rendezvous
# First step: cuDNN and cuBLAS load their kernels, the allocator grows. torch.compile, cold: 22 s for 16 layers, 47 s
# for 32 (stas00/ml-engineering, torch 2.13); nanoGPT's first iteration 33-95 s; two cores, 6 layers: 10-17 s.
WARM_UP_SECONDS = {CardKind.cpu: 0.3, CardKind.mps: 1.0}
WARM_UP_SECONDS_ON_CARDS = 3.0
COMPILE_SECONDS = 12.0
COMPILE_SECONDS_PER_LAYER = 1.2
EVALUATION_GRAPH_FACTOR = 1.4  # the forward pass without gradients is compiled once more
FORWARD_FRACTION = 1 / 3  # of a training pass, but for what an evaluation does without
TRAINING_TERMS = ("optimizer", "all_reduce", "recompute", "dropout")
# The mean of the steps over their median, where others use the processor too. On cards the constants rest on the mean
# speed of long public runs.
SLOW_STEPS_FACTOR = {CardKind.cpu: 1.02, CardKind.mps: 1.02}
CHECKPOINT_FIXED_SECONDS = 0.3
DISK_BYTES_PER_SECOND = 500e6  # where it was not measured: an NVMe disk that also syncs
SERIALISE_BYTES_PER_SECOND = 1.5e9  # copy to the host and through torch.save
COPY_BYTES_PER_SECOND = 2e9  # into fresh pages of the host: 1.0 to 1.5 on two shared cores, a card's link does more
SHUTDOWN_SECONDS = 0.05  # until the last measurement is written; the interpreter's end is not in the bill
# Import and init; trackio 0.43: 0.5 s, measured on two cores.
TRACKING_START_SECONDS = {TrackingBackend.none: 0.0, TrackingBackend.wandb: 1.0, TrackingBackend.trackio: 0.5}
WANDB_FINISH_SECONDS = 0.5  # offline 0.01 s; online it waits until everything is sent
# Local text into token files, once: bytes as they are (8.4 MB in 80 ms, two cores, 2026-11-30), or by a tokenizer
# (github.com/openai/tiktoken, README: 3 to 6 MB a second and thread).
DATA_FIXED_SECONDS = 0.03
DATA_BYTES_PER_SECOND = {True: 100e6, False: 5e6}  # is it bytes?
DATA_PREPARED_IN_LAUNCH = (DataKind.stdlib, DataKind.text)
DATA_UNKNOWN_BYTES = 30_000_000  # the standard library's sources; a text of unknown size is taken alike
# p10 and p90 of start-up, compilation, evaluations and checkpoints around their priors.
MAX_LOST_FRACTION = 0.9  # of the time; beyond it a run hardly gets ahead
LOW_FACTOR = 0.5
HIGH_FACTOR = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WallEstimate:
    """Terms: startup, data, compile, steps, data_wait, evaluations, checkpoints, shutdown; restarts if spot."""

    seconds: Band | None
    terms_seconds: Mapping[str, float]  # sum to seconds.mid
    bands: Mapping[str, Band] = field(default_factory=dict)  # the same terms with their edges


def estimate_wall(plan: RunPlan, step: StepTimeEstimate, checkpoint_bytes: int) -> WallEstimate:
    """Everything the machine is paid for."""
    if step.seconds is None:
        return WallEstimate(seconds=None, terms_seconds={})
    n_steps = plan.trainer.n_steps * SLOW_STEPS_FACTOR.get(plan.hw.card.kind, 1.0)
    bands = {
        "startup": _absolute(plan, "startup_seconds", startup_seconds(plan)),
        "data": _around(data_seconds(plan)),
        "compile": _absolute(plan, "compile_seconds", compile_seconds(plan)),
        "steps": step.seconds.scaled(n_steps),
        "data_wait": _around(data_wait_seconds(plan, step.seconds.mid * n_steps)),
        "evaluations": _ratio(plan, "evaluation_seconds", evaluation_seconds(plan, step)),
        "checkpoints": _ratio(plan, "checkpoint_seconds", checkpoint_seconds(plan, checkpoint_bytes, step.seconds.mid)),
        "shutdown": _absolute(plan, "shutdown_seconds", shutdown_seconds(plan)),
    }
    total = _sum(bands, step.seconds.source)
    spot = plan.hw.offer.interruptions
    if spot is not None:
        again = bands["restarts"] = restarts(plan, spot, total, step.seconds.mid, bands)
        edges = {edge: getattr(total, edge) + getattr(again, edge) for edge in ("low", "mid", "high")}
        total = Band(**edges, source=total.source)  # not by quadrature: a longer run is interrupted more often
    mids = {name: band.mid for name, band in bands.items()}
    return WallEstimate(seconds=total, terms_seconds=mids, bands=bands)


def _sum(bands: Mapping[str, Band], source: str) -> Band:
    """Terms err independently of each other: their distances to p10 and p90 add up in quadrature."""
    mid = sum(band.mid for band in bands.values())
    return Band(
        low=mid - sqrt(sum((band.mid - band.low) ** 2 for band in bands.values())),
        mid=mid,
        high=mid + sqrt(sum((band.high - band.mid) ** 2 for band in bands.values())),
        source=source,
    )


def restarts(plan: RunPlan, spot: Interruptions, total: Band, step_seconds: float, bands: Mapping[str, Band]) -> Band:
    """What spot machines that are taken away cost: half a checkpoint interval of lost work and a new start, each time.

    Of T useful seconds, r interruptions a second (of any node) that lose L each make T / (1 - r L): also the work that
    is done again can be interrupted (Young 1974; Daly 2006). Waiting for another machine is not in it.
    """
    interval = plan.trainer.checkpoint_interval or plan.trainer.n_steps
    lost_seconds = min(interval, plan.trainer.n_steps) * step_seconds / 2
    lost_seconds += bands["startup"].mid + bands["compile"].mid

    def longer_by(seconds: float, per_hour: float) -> float:
        lost_fraction = min(MAX_LOST_FRACTION, per_hour * plan.hw.n_nodes / SECONDS_PER_HOUR * lost_seconds)
        return seconds * lost_fraction / (1.0 - lost_fraction)

    return Band(
        low=longer_by(total.low, spot.low_per_hour),
        mid=longer_by(total.mid, spot.mid_per_hour),
        high=longer_by(total.high, spot.high_per_hour),
        source=f"{spot.source}, {spot.as_of}",
    )


def _around(seconds: float) -> Band:
    return Band(low=LOW_FACTOR * seconds, mid=seconds, high=HIGH_FACTOR * seconds, source="prior")


def _absolute(plan: RunPlan, key: str, prior_seconds: float) -> Band:
    factor = plan.calibration.factors.get(key)
    if factor is None:
        return _around(prior_seconds)
    return Band(low=factor.low, mid=factor.value, high=factor.high, source=f"calibrated ({format_runs(factor.n_runs)})")


def _ratio(plan: RunPlan, key: str, formula_seconds: float) -> Band:
    factor = plan.calibration.factors.get(key)
    if factor is None:
        return _around(formula_seconds)
    return Band(
        low=factor.low * formula_seconds,
        mid=factor.value * formula_seconds,
        high=factor.high * formula_seconds,
        source=f"calibrated ({format_runs(factor.n_runs)})",
    )


def startup_seconds(plan: RunPlan) -> float:
    """Until the first step begins, data preparation and compilation apart."""
    hw = plan.hw
    tracking = TRACKING_START_SECONDS[plan.tracking.backend]
    return (
        STARTUP_SECONDS.get(hw.card.kind, STARTUP_SECONDS_ON_CARDS)
        + RANKS_STARTUP_SECONDS * log2(hw.world_size)
        + NODES_STARTUP_SECONDS * log2(hw.n_nodes)
        + tracking
    )


def compile_seconds(plan: RunPlan) -> float:
    """What the first step and the first evaluation take longer than the others."""
    warm_up = WARM_UP_SECONDS.get(plan.hw.card.kind, WARM_UP_SECONDS_ON_CARDS)
    if not plan.trainer.compile:
        return warm_up
    return warm_up + EVALUATION_GRAPH_FACTOR * (COMPILE_SECONDS + COMPILE_SECONDS_PER_LAYER * plan.model.n_layer)


def n_events(n_steps: int, interval: int) -> int:
    """Every `interval` steps and once at the end; 0: only at the end."""
    return 1 if interval == 0 else -(-n_steps // interval)


def evaluation_seconds(plan: RunPlan, step: StepTimeEstimate) -> float:
    """All evaluations: forward passes with the training micro-batch over the held-out sequences."""
    trainer = plan.trainer
    n_passes = trainer.n_eval_sequences / (trainer.micro_batch_size * plan.hw.world_size)
    return n_events(trainer.n_steps, trainer.eval_interval) * n_passes * forward_seconds(plan, step)


def forward_seconds(plan: RunPlan, step: StepTimeEstimate) -> float:
    """One micro-batch without gradients and dropout."""
    terms = step.terms_seconds
    pass_seconds = sum(terms.values()) - sum(terms[name] for name in TRAINING_TERMS)
    return FORWARD_FRACTION * pass_seconds / plan.trainer.grad_accum_steps


def checkpoint_seconds(plan: RunPlan, checkpoint_bytes: int, step_seconds: float) -> float:
    """All checkpoints. Where a thread writes, a step waits for its copy, the next save and the end for the thread."""
    trainer, one = plan.trainer, write_seconds(plan, checkpoint_bytes)
    n_before_the_end = n_events(trainer.n_steps, trainer.checkpoint_interval) - 1
    if not saves_beside(plan, checkpoint_bytes):
        return n_before_the_end * one + one
    still_writing = max(0.0, one - trainer.checkpoint_interval * step_seconds)
    return n_before_the_end * (save_seconds(plan, checkpoint_bytes) + still_writing) + one


def write_seconds(plan: RunPlan, checkpoint_bytes: int) -> float:
    """One checkpoint: copied, serialised, written, flushed."""
    disk = plan.hw.disk_bytes_per_second or DISK_BYTES_PER_SECOND
    return CHECKPOINT_FIXED_SECONDS + checkpoint_bytes / disk + checkpoint_bytes / SERIALISE_BYTES_PER_SECOND


def save_seconds(plan: RunPlan, checkpoint_bytes: int) -> float:
    """What a step waits for when a checkpoint is due."""
    one = write_seconds(plan, checkpoint_bytes)
    return min(one, checkpoint_bytes / COPY_BYTES_PER_SECOND) if saves_beside(plan, checkpoint_bytes) else one


def saves_beside(plan: RunPlan, checkpoint_bytes: int) -> bool:
    """Asked for, and the host has room for two copies, where its memory is known (trainers.state)."""
    host = plan.hw.host_memory_bytes
    return plan.trainer.save_beside and (host is None or 2 * checkpoint_bytes <= host)


def data_seconds(plan: RunPlan) -> float:
    """Small local text is prepared inside the launch, once."""
    data = plan.data
    if data.prepared or data.kind not in DATA_PREPARED_IN_LAUNCH:
        return 0.0
    n_bytes = DATA_UNKNOWN_BYTES if data.n_source_bytes is None else data.n_source_bytes
    is_bytes = plan.model.tokenizer is Tokenizer.byte and data.tokenizer_path is None
    return DATA_FIXED_SECONDS + n_bytes / DATA_BYTES_PER_SECOND[is_bytes]


def data_wait_seconds(plan: RunPlan, steps_seconds: float) -> float:
    """Tokens are read once from the disk, later from the cache; cards compute beside it, a CPU waits."""
    data, trainer = plan.data, plan.trainer
    if not data.prepared and data.kind in DATA_PREPARED_IN_LAUNCH:
        return 0.0  # just written, so still in the cache
    n_tokens = min(trainer.total_tokens, data.n_train_tokens or trainer.total_tokens)
    measured = plan.hw.measured.disk_read_bytes_per_second if plan.hw.measured is not None else None
    n_bytes = n_tokens * (4 if data.dtype == "uint32" else 2) / plan.hw.n_nodes
    read_seconds = n_bytes / (measured or DISK_BYTES_PER_SECOND)
    is_beside = plan.hw.card.kind in (CardKind.cuda, CardKind.rocm)
    return max(0.0, read_seconds - steps_seconds) if is_beside else read_seconds


def shutdown_seconds(plan: RunPlan) -> float:
    """The last word to the tracker, and the meters' last look."""
    is_tracked = plan.tracking.backend is TrackingBackend.wandb
    return SHUTDOWN_SECONDS + (WANDB_FINISH_SECONDS if is_tracked else 0.0)
