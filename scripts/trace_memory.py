"""A second opinion on peak memory that is not the formula: run the trainer's own model and count its tensors.

python scripts/trace_memory.py model=gpt2_124m hw=1x4090 trainer.micro_batch_size=4     one plan, as launch.py takes it
python scripts/trace_memory.py --grid                                                   0.8M-124M, a minute or two
python scripts/trace_memory.py --options                                                optimizers, adapters, loss, ...
python scripts/trace_memory.py --real model=tiny hw=cpu                                 real tensors under the profiler

Tensors are fake (`FakeTensorMode`: shapes without contents), so any model fits. A storage counts from the operator that
made it until its last reference dies, as an allocator would see it. What a kernel allocates inside one operator stays
unseen; `--real` sees that too. CUDA's autocast cannot be switched on without a card: its rules are spelled out here.
Compiled plans are traced as eager ones would run: Inductor's choices are outside this program.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from conf.choices import Adapter, Optimizer
from preflight.hw_plan import CardKind
from preflight.memory.peak import MemoryEstimate, estimate_memory
from preflight.plan import Checkpointing, Precision, RunPlan
from preflight.units import format_bytes
from scripts import accuracy_page
from scripts.live_bytes import LiveBytes, cuda_autocast, cuda_kernels
from trainers.build import build_model
from trainers.gpt import GPT
from trainers.optimizers import make_optimizer
from trainers.precision import AUTOCAST_DTYPES, autocast

GRID_MODELS = {"tiny": (1, 16), "gpt2_10m": (2, 16), "gpt2_124m": (1, 8)}  # preset: micro-batches of 256 tokens
GRID_SEQUENCE_LENGTH = 256
MEDIUM = "fp32 trainer.float32_matmul_precision=medium"
OPTIONS = (
    "trainer.optimizer=sgd", "trainer.optimizer=adafactor", "trainer.optimizer=muon",
    "trainer.optimizer_kernel=foreach trainer.micro_batch_size=1", "trainer.optimizer_kernel=loop",
    "trainer.activation_checkpointing=selective", "trainer.activation_checkpointing=full", "trainer.attention=eager",
    "trainer.attention=sdpa", "trainer.loss_chunk_tokens=256", "trainer.eval_micro_batch_size=16",
    "trainer.adapter=lora", "trainer.adapter=lora trainer.lora_targets=query_value", "trainer.adapter=qlora",
    "model.qk_norm=true", "model.head_dim=64",
)  # fmt: skip


def trace_phases(plan: RunPlan) -> dict[str, int]:
    """Peak bytes of living tensors in each phase of the second step, and of an evaluation."""
    on_card = plan.hw.card.kind is not CardKind.cpu
    with _tensors(plan), cuda_kernels() if on_card else contextlib.nullcontext():
        model = make_model(plan)
        optimizer = make_optimizer(model, plan.trainer)
        live = LiveBytes(adds_in_place=plan.trainer.precision in AUTOCAST_DTYPES)
        with live:
            for tensor in [*model.parameters(), *model.buffers()]:
                live.add(tensor)
            for _ in range(2):
                live.peak_bytes.clear()
                _step(plan, model, phase=lambda name: setattr(live, "phase", name), update=optimizer.step)
            live.phase = "evaluation"
            _evaluate(plan, model)
    return live.peak_bytes


def _tensors(plan: RunPlan) -> contextlib.AbstractContextManager[object]:
    """Fake ones, except where somebody looks at their contents or changes their type."""
    trainer = plan.trainer
    looks = trainer.optimizer in (Optimizer.adafactor, Optimizer.adamw_8bit) or trainer.adapter is not Adapter.none
    return contextlib.nullcontext() if looks else FakeTensorMode()


def make_model(plan: RunPlan) -> GPT:
    """As `trainers.pretrain` makes it. Fake parameters cannot change their type later, so they are born with it."""
    torch.set_default_dtype(torch.bfloat16 if plan.trainer.precision is Precision.bf16_pure else torch.float32)
    try:
        with mock.patch.object(GPT, "to", lambda model, *_: model):
            return build_model(plan)
    finally:
        torch.set_default_dtype(torch.float32)


def measure_bytes(plan: RunPlan) -> int:
    """Peak bytes of real CPU tensors, kernels' own included, as PyTorch's profiler sees the CPU allocator."""
    model = make_model(plan)
    optimizer = make_optimizer(model, plan.trainer)
    _step(plan, model, update=optimizer.step)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        _step(plan, model, update=optimizer.step)
        _evaluate(plan, model)
    results: Any = profile.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    changes: list[int] = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    weights = sum(parameter.nbytes for parameter in model.parameters())
    return 3 * weights + max(itertools.accumulate(changes))


def _step(
    plan: RunPlan,
    model: GPT,
    *,
    phase: Callable[[str], None] = lambda name: None,
    update: Callable[[], object] = lambda: None,
) -> None:
    """The order of `trainers/pretrain.py`; two passes stand for any accumulation. The fused update writes in place."""
    idx, targets = _batch(plan)
    for _ in range(min(plan.trainer.grad_accum_steps, 2)):
        phase("forward")
        with _autocast(plan):
            loss = model(idx, targets) / plan.trainer.grad_accum_steps
        idx, targets = _batch(plan)
        phase("loss_backward")
        with _autocast_of_recomputation(plan):
            loss.backward()
    phase("optimizer_step")
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    update()
    model.zero_grad(set_to_none=True)


@torch.no_grad()
def _evaluate(plan: RunPlan, model: GPT) -> None:
    model.eval()
    idx, targets = _batch(plan, plan.trainer.eval_micro_batch_size)
    with _autocast(plan):
        model(idx, targets)
    model.train()


def _batch(plan: RunPlan, n_sequences: int | None = None) -> tuple[Tensor, Tensor]:
    shape = (n_sequences or plan.trainer.micro_batch_size, plan.trainer.sequence_length)
    return torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)


def _autocast(plan: RunPlan, *, keeps_casts: bool = True) -> contextlib.AbstractContextManager[object]:
    dtype = AUTOCAST_DTYPES.get(plan.trainer.precision)
    if dtype is not None and plan.hw.card.kind is not CardKind.cpu:
        return cuda_autocast(dtype, keeps_casts=keeps_casts)
    return autocast(plan.trainer.precision, torch.device("cpu"))


def _autocast_of_recomputation(plan: RunPlan) -> contextlib.AbstractContextManager[object]:
    """`torch.utils.checkpoint` enters the forward pass's autocast itself, and forgets each block's casts after it."""
    if plan.hw.card.kind is CardKind.cpu:
        return contextlib.nullcontext()
    return _autocast(plan, keeps_casts=False)


def grid() -> Iterator[RunPlan]:
    """Sizes, batches, precisions and accumulation, on a CPU and on a card."""
    for preset, sizes in GRID_MODELS.items():
        for micro_batch_size, precision, recompute, n_passes, hw in itertools.product(
            sizes, ("fp32", "bf16"), ("none", "full"), (1, 4), ("cpu", "1x4090")
        ):
            if precision == "fp32" and hw != "cpu":
                continue  # the same tensors
            yield _plan(
                f"model={preset}", f"hw={hw}", f"trainer.sequence_length={GRID_SEQUENCE_LENGTH}",
                f"trainer.micro_batch_size={micro_batch_size}", f"trainer.precision={precision}",
                f"trainer.tokens_per_step={GRID_SEQUENCE_LENGTH * micro_batch_size * n_passes}",
                f"trainer.activation_checkpointing={recompute}", "trainer.compile=false",
            )  # fmt: skip


def options_grid() -> Iterator[RunPlan]:
    """What else moves the bytes: one option at a time, small enough for real tensors."""
    gpt = ("model=tiny", "trainer.sequence_length=128", "trainer.micro_batch_size=4", "trainer.tokens_per_step=1024")
    llama = (
        "model=llama_125m", "model.n_layer=3", "model.vocab_size=2048", "trainer.sequence_length=128",
        "trainer.micro_batch_size=4", "trainer.tokens_per_step=1024",
    )  # fmt: skip
    for base, line in itertools.product((gpt, llama), OPTIONS):
        for precision, hw in (("fp32", "cpu"), (MEDIUM, "cpu"), ("bf16", "1x4090"), ("bf16_pure", "cpu")):
            if "qlora" not in line or hw != "cpu":
                arithmetic = f"hw={hw} trainer.precision={precision} trainer.compile=false".split()
                yield _plan(*base, *arithmetic, *line.split())


def _plan(*overrides: str) -> RunPlan:
    from launch import bill

    asked = bill(*overrides, "calibration=off", "lowering.policy=off", "trainer.n_steps=10")
    return asked.plan


def tensors_bytes(estimate: MemoryEstimate) -> int:
    """The formula's peak without cuBLAS's workspace, which no tensor stands for."""
    return int(estimate.allocated.mid) - estimate.terms_bytes.get("cublas_workspace", 0)


def compare(plans: Sequence[RunPlan], *, real: bool) -> list[float]:
    """Print formula against trace, a line a plan; the deviations as fractions."""
    offs: list[float] = []
    print(f"{'plan':<58}{'traced':>10}{'formula':>10}{'off':>8}  peak phase: traced | formula")
    for plan in plans:
        trainer, estimate = plan.trainer, estimate_memory(plan)
        phases = {"all": measure_bytes(plan)} if real else trace_phases(plan)
        phase = max(phases, key=phases.__getitem__)
        off = tensors_bytes(estimate) / phases[phase] - 1
        offs.append(abs(off))
        recompute = "" if trainer.activation_checkpointing is Checkpointing.none else " recompute"
        label = (
            f"{plan.model.name} {plan.hw.card.name} {trainer.micro_batch_size} x {trainer.sequence_length}"
            f" x {trainer.grad_accum_steps} passes {trainer.precision.value}{recompute}"
        )
        sizes = f"{format_bytes(phases[phase]):>10}{format_bytes(tensors_bytes(estimate)):>10}"
        print(f"{label:<58}{sizes}{off:>+8.1%}  {phase} | {estimate.phase}", flush=True)
    return offs


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 when formula and trace differ by more than the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="as for launch.py")
    parser.add_argument("--grid", action="store_true", help="a grid of models, batches and precisions")
    parser.add_argument("--options", action="store_true", help="a grid of the trainer's other options, a minute or two")
    parser.add_argument("--write", type=Path, metavar="docs/accuracy.md", help="the summary, as a section of that page")
    parser.add_argument("--real", action="store_true", help="real CPU tensors under the profiler")
    parser.add_argument("--tolerance", type=float, default=0.03, help="fraction (default 0.03)")
    parsed = parser.parse_args(arguments)
    grids = (list(grid()) if parsed.grid else []) + (list(options_grid()) if parsed.options else [])
    plans = grids or [_plan(*parsed.overrides)]
    plans = [replace(plan, trainer=replace(plan.trainer, compile=False)) for plan in plans]
    offs = compare(plans, real=parsed.real)
    worst = max(offs)
    summary = f"{len(plans)} plans, worst {worst:.1%}, tolerance {parsed.tolerance:.1%}"
    print(summary)
    if parsed.write is not None:
        command = f"python scripts/trace_memory.py {'--grid ' * parsed.grid}{'--options ' * parsed.options}--write"
        body = f"`{command} docs/accuracy.md`: {summary}; median {statistics.median(offs):.3%}."
        accuracy_page.put_section(
            parsed.write, "memory against the trace", "The formula against the trainer's code", body
        )
    return 0 if worst <= parsed.tolerance else 1


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
