"""A second opinion on peak memory that is not the formula: run the trainer's own model and count its tensors.

python scripts/trace_memory.py model=gpt2_124m hw=1x4090 trainer.micro_batch_size=4     one plan, as launch.py takes it
python scripts/trace_memory.py --grid                                                   0.8M-124M, a minute or two
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
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from preflight.hw_plan import CardKind
from preflight.memory.peak import MemoryEstimate, estimate_memory
from preflight.plan import Checkpointing, RunPlan
from preflight.units import format_bytes
from trainers.gpt import GPT, make_optimizer
from trainers.precision import AUTOCAST_DTYPES, autocast

GRID_MODELS = {"tiny": (1, 16), "gpt2_10m": (2, 16), "gpt2_124m": (1, 8)}  # preset: micro-batches of 256 tokens
GRID_SEQUENCE_LENGTH = 256


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of all living storages that passed an operator, and their largest sum in each phase of the formula.

    `adds_in_place`: autograd sums the two gradients of a tied embedding in the head's own tensor when that was cast,
    but never under an operator mode such as this one.
    """

    def __init__(self, *, adds_in_place: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.adds_in_place = adds_in_place
        self.phase = ""
        self.peak_bytes: dict[str, int] = {}
        self.now_bytes = 0
        self._living: dict[int, int] = {}
        self._sum: weakref.ref[Tensor] | None = None

    def add(self, tensor: Tensor) -> None:
        """Count a tensor's storage, once."""
        storage = tensor.untyped_storage()
        key, n_bytes = storage._cdata, storage.nbytes()
        if key in self._living or not n_bytes:
            return
        self._living[key] = n_bytes
        self.now_bytes += n_bytes
        weakref.finalize(storage, self._remove, key)
        self.peak_bytes[self.phase] = max(self.peak_bytes.get(self.phase, 0), self.now_bytes)

    def _remove(self, key: int) -> None:
        self.now_bytes -= self._living.pop(key)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, then count what it made. Its name says which part of the backward pass has begun."""
        name = str(func)
        if self._sum is not None and (made := self._sum()) is not None:
            self.add(made)
        self._sum = None
        if self.phase == "head_backward" and "native_layer_norm_backward" in name:
            self.phase = "layer_backward"
        if self.phase == "layer_backward" and "embedding_dense_backward" in name:
            self.phase = "backward_end"
        result = func(*args, **(kwargs or {}))
        if self.adds_in_place and self.phase == "backward_end" and name == "aten.add.Tensor":
            self._sum = weakref.ref(result)  # counted once the operand whose place it takes is gone
            return result
        for leaf in tree_iter(result):
            if isinstance(leaf, Tensor):
                self.add(leaf)
        if self.phase == "loss_backward" and "log_softmax_backward" in name:
            self.phase = "head_backward"
        return result


@contextlib.contextmanager
def cuda_autocast(dtype: torch.dtype, *, keeps_casts: bool) -> Iterator[None]:
    """What `torch.autocast("cuda")` does to this model: linears in 16 bit with cached weights, nll_loss in fp32."""
    casts: dict[int, Tensor] = {}
    linear, log_softmax, nll_loss = F.linear, F.log_softmax, F.nll_loss

    def cast(parameter: Tensor) -> Tensor:
        if not keeps_casts:
            return parameter.to(dtype)
        if id(parameter) not in casts:
            casts[id(parameter)] = parameter.to(dtype)
        return casts[id(parameter)]

    def half_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(x.to(dtype), cast(weight), None if bias is None else cast(bias))

    def half_cross_entropy(logits: Tensor, targets: Tensor, ignore_index: int) -> Tensor:
        return nll_loss(log_softmax(logits, dim=-1).float(), targets, ignore_index=ignore_index)

    with mock.patch.object(F, "linear", half_linear), mock.patch.object(F, "cross_entropy", half_cross_entropy):
        yield


def trace_phases(plan: RunPlan) -> dict[str, int]:
    """Peak bytes of living fake tensors in each phase of the second step, and of an evaluation."""
    with FakeTensorMode():
        model = GPT(plan.model, plan.trainer.sequence_length, plan.trainer.activation_checkpointing)
        moments = [torch.zeros_like(parameter) for parameter in model.parameters() for _ in range(2)]
        live = LiveBytes(adds_in_place=plan.trainer.precision in AUTOCAST_DTYPES)
        with live:
            for tensor in [*model.parameters(), *model.buffers(), *moments]:
                live.add(tensor)
            for _ in range(2):
                live.peak_bytes.clear()
                _step(plan, model, phase=lambda name: setattr(live, "phase", name))
            live.phase = "evaluation"
            _evaluate(plan, model)
    return live.peak_bytes


def measure_bytes(plan: RunPlan) -> int:
    """Peak bytes of real CPU tensors, kernels' own included, as PyTorch's profiler sees the CPU allocator."""
    model = GPT(plan.model, plan.trainer.sequence_length, plan.trainer.activation_checkpointing)
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
    idx, targets = _batch(plan)
    with _autocast(plan):
        model(idx, targets)
    model.train()


def _batch(plan: RunPlan) -> tuple[Tensor, Tensor]:
    shape = (plan.trainer.micro_batch_size, plan.trainer.sequence_length)
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


def _plan(*overrides: str) -> RunPlan:
    from launch import bill

    asked = bill(*overrides, "calibration=off", "lowering.policy=off", "trainer.n_steps=10")
    return asked.plan


def tensors_bytes(estimate: MemoryEstimate) -> int:
    """The formula's peak without cuBLAS's workspace, which no tensor stands for."""
    return int(estimate.allocated.mid) - estimate.terms_bytes.get("cublas_workspace", 0)


def compare(plans: Sequence[RunPlan], *, real: bool) -> float:
    """Print formula against trace, a line a plan; the worst deviation as a fraction."""
    worst = 0.0
    print(f"{'plan':<58}{'traced':>10}{'formula':>10}{'off':>8}  peak phase: traced | formula")
    for plan in plans:
        trainer, estimate = plan.trainer, estimate_memory(plan)
        phases = {"all": measure_bytes(plan)} if real else trace_phases(plan)
        phase = max(phases, key=phases.__getitem__)
        off = tensors_bytes(estimate) / phases[phase] - 1
        worst = max(worst, abs(off))
        recompute = "" if trainer.activation_checkpointing is Checkpointing.none else " recompute"
        label = (
            f"{plan.model.name} {plan.hw.card.name} {trainer.micro_batch_size} x {trainer.sequence_length}"
            f" x {trainer.grad_accum_steps} passes {trainer.precision.value}{recompute}"
        )
        sizes = f"{format_bytes(phases[phase]):>10}{format_bytes(tensors_bytes(estimate)):>10}"
        print(f"{label:<58}{sizes}{off:>+8.1%}  {phase} | {estimate.phase}", flush=True)
    return worst


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 when formula and trace differ by more than the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="as for launch.py")
    parser.add_argument("--grid", action="store_true", help="a grid of models, batches and precisions")
    parser.add_argument("--real", action="store_true", help="real CPU tensors under the profiler")
    parser.add_argument("--tolerance", type=float, default=0.03, help="fraction (default 0.03)")
    parsed = parser.parse_args(arguments)
    plans = list(grid()) if parsed.grid else [_plan(*parsed.overrides)]
    plans = [replace(plan, trainer=replace(plan.trainer, compile=False)) for plan in plans]
    worst = compare(plans, real=parsed.real)
    print(f"{len(plans)} plans, worst {worst:.1%}, tolerance {parsed.tolerance:.1%}")
    return 0 if worst <= parsed.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
