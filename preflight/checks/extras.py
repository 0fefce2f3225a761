"""Does this run need what is not part of every installation: an extra package, weights to start from?"""

from __future__ import annotations

from collections.abc import Iterator

from conf.choices import Adapter, Optimizer
from preflight.checks.finding import machine_error
from preflight.errors import ExitCode
from preflight.machine.snapshot import Machine
from preflight.plan import RunPlan
from preflight.verdict.judge import Finding, Severity

QUANTIZED = "pip install 'preflight[quantized]'"
DATA = "pip install 'preflight[data]'"
NOT_COMPUTED = ("rope_scaling", "sliding_window", "quantization_config")
HUGGING_FACE = "pip install 'preflight[hf]'"


def judge_packages(plan: RunPlan, machine: Machine) -> Iterator[Finding]:
    """Of this computer; a bill needs none of them."""
    trainer, around = plan.trainer, machine.around
    if around.bitsandbytes is None:
        if trainer.optimizer is Optimizer.adamw_8bit:
            message = "trainer.optimizer=adamw_8bit needs bitsandbytes, which is not installed"
            yield machine_error("software.bitsandbytes", message, f"{QUANTIZED}, or trainer.optimizer=adafactor")
        if trainer.adapter is Adapter.qlora:
            message = "trainer.adapter=qlora needs bitsandbytes, which is not installed"
            yield machine_error("software.bitsandbytes", message, f"{QUANTIZED}, or trainer.adapter=lora")
    if around.safetensors is None and (trainer.init_from or "").startswith("hf:"):
        message = "weights of a Hugging Face folder need safetensors, which is not installed"
        yield machine_error("software.safetensors", message, HUGGING_FACE)
    if plan.data.source_path is not None and not plan.data.prepared:
        yield from _to_prepare_text(plan, machine)


def _to_prepare_text(plan: RunPlan, machine: Machine) -> Iterator[Finding]:
    """Which the run does itself, once."""
    if plan.data.n_source_bytes is None and machine.around.pyarrow is None:  # there are tables among the files
        message = ".parquet files are read with pyarrow, which is not installed"
        yield machine_error("software.pyarrow", message, DATA)
    if plan.data.tokenizer_path is not None and machine.around.tokenizers is None:
        message = "data.tokenizer is read with Hugging Face's tokenizers, which is not installed"
        yield machine_error("software.tokenizers", message, DATA)


def judge_start(plan: RunPlan, *, is_here: bool) -> Iterator[Finding]:
    """What can be billed, and whose training would be a waste, or that of another model."""
    if plan.model.path is not None and (plan.trainer.init_from or "").startswith("hf:"):
        yield from _other_function(plan, is_here=is_here)
    if plan.trainer.adapter is not Adapter.none and plan.trainer.init_from is None:
        message = f"trainer.adapter={plan.trainer.adapter.name} trains beside frozen weights, and there are none yet"
        yield _start(message, "trainer.init_from=hf:DIR or a run's folder, or trainer.adapter=none", is_here=is_here)


def _other_function(plan: RunPlan, *, is_here: bool) -> Iterator[Finding]:
    """Weights that were trained with what is not computed here (preflight.resolve.hf_notes)."""
    for name in NOT_COMPUTED:
        origin = plan.provenance.get(f"model.path.{name}")
        if origin is not None:
            message = f"trainer.init_from={plan.trainer.init_from} has {name}: {origin.partition(': ')[2]}"
            yield _start(message, "trainer.init_from=null, or weights without it", is_here=is_here)


def _start(message: str, fix: str, *, is_here: bool) -> Finding:
    """An error on the machine that trains, a word on paper."""
    return Finding(
        check="trainer.init_from",
        severity=Severity.error if is_here else Severity.warning,
        message=message,
        fix=fix,
        exit_code=ExitCode.CONFIG,
    )
