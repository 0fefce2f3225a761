"""How fast are matmuls, copies and the host's launches on one device?

The matmul rate is the best size's median, what `preflight.step_time` takes as the card's ceiling. A copy counts what it
reads and what it writes. The host's share of a layer is the slope of forward and backward passes over a model so narrow
that the device waits for the host.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from conf.choices import Family, Tokenizer
from preflight.plan import ModelPlan, Precision
from trainers.gpt import GPT
from trainers.precision import autocast, set_matmul_precision
from trainers.probe.clock import Clock

SIZES = {"cpu": (256, 512, 1024, 2048), "mps": (512, 1024, 2048, 4096), "cuda": (1024, 2048, 4096, 8192)}
DTYPES = {
    Precision.fp32: torch.float32,
    Precision.tf32: torch.float32,
    Precision.bf16: torch.bfloat16,
    Precision.fp16: torch.float16,
}
COPY_BYTES = {"cpu": 2**26, "mps": 2**28, "cuda": 2**30}
FREE_SHARE = 0.25  # of the free memory, for one measurement
NARROW = 32  # width of the model whose passes are the host's work
FEW_TOKENS = 8
FEW_LAYERS, MORE_LAYERS = 2, 6


class MatmulRate(NamedTuple):
    """Of two square matrices."""

    precision: str
    n: int
    flops_per_second: float


def matmul_rates(device: torch.device, precisions: Sequence[Precision], budget_seconds: float) -> list[MatmulRate]:
    """By size and precision; sizes that no longer fit the time or the memory are left out."""
    sizes = SIZES[device.type]
    share_seconds = budget_seconds / (len(sizes) * max(1, len(precisions)))
    found: list[MatmulRate] = []
    for precision in precisions:
        set_matmul_precision(precision)
        last: MatmulRate | None = None
        for n in sizes:
            expected_seconds = 2 * n**3 / last.flops_per_second if last is not None else 0.0
            if 4 * expected_seconds > 2 * share_seconds or not _fits(device, 3 * n * n * 4):
                break
            last = MatmulRate(precision.value, n, _matmul_rate(device, DTYPES[precision], n, share_seconds))
            found.append(last)
    return found


def _matmul_rate(device: torch.device, dtype: torch.dtype, n: int, budget_seconds: float) -> float:
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    out = torch.empty(n, n, device=device, dtype=dtype)
    return 2 * n**3 / Clock(device).median_seconds(lambda: torch.mm(a, b, out=out), budget_seconds)


def copy_bytes_per_second(device: torch.device, budget_seconds: float) -> float | None:
    """Both directions; None: not even a small copy fits."""
    n_bytes = COPY_BYTES[device.type]
    while not _fits(device, 2 * n_bytes):
        n_bytes //= 4
        if n_bytes < 2**20:
            return None
    source = torch.ones(n_bytes // 4, device=device)
    target = torch.empty_like(source)
    return 2 * n_bytes / Clock(device).median_seconds(lambda: target.copy_(source), budget_seconds)


def host_seconds(device: torch.device, precision: Precision, budget_seconds: float) -> tuple[float, float]:
    """Of a pass without layers, and of each layer: forward and backward, not compiled. RuntimeError: noise hides it."""
    few, more = (_pass_seconds(device, precision, n_layer, budget_seconds / 2) for n_layer in (FEW_LAYERS, MORE_LAYERS))
    layer_seconds = (more - few) / (MORE_LAYERS - FEW_LAYERS)
    without_layers = few - FEW_LAYERS * layer_seconds
    if min(layer_seconds, without_layers) <= 0.0:  # a neighbour slowed one of the two down
        told = f"{FEW_LAYERS} layers took {few * 1e3:.3g} ms and {MORE_LAYERS} of them {more * 1e3:.3g} ms"
        raise RuntimeError(f"{told}, so other work or the clock decides; a longer look may do")
    return without_layers, layer_seconds


def _pass_seconds(device: torch.device, precision: Precision, n_layer: int, budget_seconds: float) -> float:
    """By the host's clock: the device has nothing to do that takes long."""
    model = narrow_model(n_layer).to(device)
    tokens = torch.zeros(1, FEW_TOKENS, dtype=torch.int64, device=device)

    def work() -> None:
        model.zero_grad(set_to_none=False)
        with autocast(precision, device):
            loss = model(tokens, tokens)
        loss.backward()

    clock = Clock(device)
    rounds: list[float] = []
    deadline = time.perf_counter() + budget_seconds
    work()
    while len(rounds) < 5 or (time.perf_counter() < deadline and len(rounds) < 200):
        clock.wait()
        begin = time.perf_counter()
        work()
        clock.wait()
        rounds.append(time.perf_counter() - begin)
    return sorted(rounds)[len(rounds) // 2]


def narrow_model(n_layer: int) -> nn.Module:
    """The trainer's own blocks."""
    shape = ModelPlan(
        name="probe",
        family=Family.gpt2,
        n_layer=n_layer,
        n_head=1,
        n_kv_head=1,
        n_embd=NARROW,
        d_ff=4 * NARROW,
        vocab_size=2 * NARROW,
        tokenizer=Tokenizer.byte,
        tied_head=True,
        bias=False,
        dropout=0.0,
    )
    return GPT(shape, FEW_TOKENS)


def _fits(device: torch.device, n_bytes: int) -> bool:
    """Others may be using the card."""
    if device.type != "cuda":
        return True
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return n_bytes <= FREE_SHARE * free_bytes
