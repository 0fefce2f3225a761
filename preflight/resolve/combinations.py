"""Which options contradict each other, or would have no effect together? Each is refused with one that works.

A trainer that took them silently would train something else than what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from conf.choices import Adapter, Float32Matmul, Optimizer, OptimizerKernel, Parallel, Positions
from conf.schema import Config, TrainerConfig
from preflight.hw_plan import Card, CardKind
from preflight.plan import ModelPlan, Precision, TrainerPlan
from preflight.products import arithmetic_of
from preflight.resolve.resolution import Resolution, show
from preflight.sharing import sharing_faults

HF_PREFIX = "hf:"
DEFAULT_THETA = 10_000.0
KERNELS = {  # that PyTorch has; muon: of the AdamW beside it
    Optimizer.adamw: tuple(OptimizerKernel),
    Optimizer.sgd: tuple(OptimizerKernel),
    Optimizer.muon: tuple(OptimizerKernel),
    Optimizer.adafactor: (OptimizerKernel.foreach, OptimizerKernel.loop),
    Optimizer.adamw_8bit: (OptimizerKernel.fused,),
}

ADAPTERS_OWN = ("lora_rank", "lora_alpha", "lora_targets")
SCALERS_OWN = ("max_nonfinite_steps",)
READ_BY = {  # muon: with AdamW beside it; sgd: beta1 is its momentum
    "muon_learning_rate": (Optimizer.muon,),
    "beta1": (Optimizer.adamw, Optimizer.adamw_8bit, Optimizer.muon, Optimizer.sgd),
    "beta2": (Optimizer.adamw, Optimizer.adamw_8bit, Optimizer.muon),
}


class Fault(NamedTuple):
    """What `Resolution.refuse` takes."""

    path: str
    value: Any
    message: str
    fix: str


def check_model(config: Config, model: ModelPlan, resolution: Resolution) -> None:
    """What the numbers of a shape owe each other."""
    for fault in (*_heads(config, model, resolution), *_positions(config, model)):
        resolution.refuse(*fault)


def check_trainer(model: ModelPlan, trainer: TrainerPlan, kind: CardKind, resolution: Resolution) -> None:
    """The trainer's options among themselves, and with the model, the card, and the weights to start from."""
    faults = [
        *_table(model, trainer), *_kernel(trainer), *_sharing(trainer), *_products(trainer), *_adapter(model, trainer),
        *_bitsandbytes(trainer, kind), *_start(trainer), *_beside(trainer, kind),
    ]  # fmt: skip
    for fault in faults:
        resolution.refuse(*fault)
    _note_unread(trainer, resolution)


def _note_unread(trainer: TrainerPlan, resolution: Resolution) -> None:
    """What another adapter, optimizer or precision reads is no fault, so that those can be compared; it is told."""
    rule, untouched = trainer.optimizer, TrainerConfig()
    unread = {
        f"trainer.adapter={trainer.adapter.name}": ADAPTERS_OWN if trainer.adapter is Adapter.none else (),
        f"trainer.optimizer={rule.name}": [name for name, rules in READ_BY.items() if rule not in rules],
        f"trainer.precision={trainer.precision.name}": SCALERS_OWN if trainer.precision is not Precision.fp16 else (),
    }
    for with_what, names in unread.items():
        for name in names:
            if (value := getattr(trainer, name)) != getattr(untouched, name):
                idle = f"given: {show(value)} has no effect with {with_what}"
                resolution.provenance[f"trainer.{name}"] = idle


def note_exact_products(trainer: TrainerPlan, card: Card, resolution: Resolution) -> None:
    """Leave to round fp32 products that this hardware makes no use of is no fault; it is told."""
    given = trainer.float32_matmul_precision
    is_idle = trainer.precision is Precision.fp32 and arithmetic_of(trainer, card) is Precision.fp32
    if is_idle and given is not Float32Matmul.highest and card.kind is not CardKind.rocm:
        idle = f"given: {given.name} has no effect on {card.label}, products of fp32 numbers stay exact"
        resolution.provenance["trainer.float32_matmul_precision"] = idle


def note_idle(config: Config, n_nodes: int, world_size: int, resolution: Resolution) -> None:
    """What is for several ranks or nodes is no fault on one, so that a command line can be tried there; it is told."""
    parallel = config.trainer.parallel
    if world_size == 1 and parallel is not Parallel.ddp:
        idle = f"given: a single rank has nobody to share with, so {parallel.name} changes nothing"
        resolution.provenance["trainer.parallel"] = idle
    if world_size == 1 and not config.trainer.bucket_views:
        resolution.provenance["trainer.bucket_views"] = "given: a single rank has no buckets, so it changes nothing"
    if n_nodes == 1 and config.hw.network_gbit_per_second is not None:
        idle = "given: the ranks of one node do not use the network, so it changes nothing"
        resolution.provenance["hw.network_gbit_per_second"] = idle


def _beside(trainer: TrainerPlan, kind: CardKind) -> Iterator[Fault]:
    """A copy in the host's memory is free only where training has memory of its own."""
    if trainer.save_beside and kind in (CardKind.cpu, CardKind.mps):
        message = f"on {kind.name} the copy would take the memory that training needs"
        yield Fault("trainer.save_beside", "true", message, "trainer.save_beside=null")


def absolute_start(init_from: str | None) -> str | None:
    """Ranks and resumed runs may stand in another folder."""
    if init_from is None:
        return None
    prefix = HF_PREFIX if init_from.startswith(HF_PREFIX) else ""
    return prefix + str(Path(init_from.removeprefix(prefix)).expanduser().absolute())


def _heads(config: Config, model: ModelPlan, resolution: Resolution) -> Iterator[Fault]:
    is_sound = resolution.is_sound("model.n_embd", "model.n_head")
    if is_sound and config.model.head_dim is None and model.n_embd % model.n_head:
        below = model.n_embd // model.n_head * model.n_head
        widths = [width for width in (below, below + model.n_head) if width > 0]
        message = f"{model.n_head} heads do not divide it; valid are {' or '.join(map(str, widths))}"
        yield Fault("model.n_embd", model.n_embd, message, f"model.n_embd={widths[-1]}")
    elif is_sound and model.positions is Positions.rotary and model.head_dim % 2:
        message = f"rotary positions turn pairs of channels, a head has {model.head_dim}"
        yield Fault("model.head_dim", model.head_dim, message, f"model.head_dim={model.head_dim + 1}")
    if resolution.is_sound("model.n_head", "model.n_kv_head") and model.n_head % model.n_kv_head:
        valid = [n for n in range(1, model.n_head + 1) if model.n_head % n == 0]
        nearest = min(valid, key=lambda n: abs(n - model.n_kv_head))
        message = f"must divide the {model.n_head} heads; valid are {', '.join(map(str, valid))}"
        yield Fault("model.n_kv_head", model.n_kv_head, message, f"model.n_kv_head={nearest}")


def _positions(config: Config, model: ModelPlan) -> Iterator[Fault]:
    given = config.model
    if model.positions is Positions.rotary and given.n_positions is not None:
        message = "rotary positions have no table: any length goes"
        yield Fault("model.n_positions", given.n_positions, message, "model.n_positions=null")
    if model.positions is Positions.learned and given.rope_theta != DEFAULT_THETA:
        message = "learned positions do not rotate anything"
        yield Fault("model.rope_theta", given.rope_theta, message, "model.positions=rotary")


def _table(model: ModelPlan, trainer: TrainerPlan) -> Iterator[Fault]:
    n_rows = model.n_positions
    if model.positions is Positions.learned and n_rows is not None and n_rows < trainer.sequence_length:
        message = f"the table of positions ends before a sequence of {trainer.sequence_length} tokens does"
        fix = "model.n_positions=null" if model.path is None else f"trainer.sequence_length={n_rows}"
        yield Fault("model.n_positions", n_rows, message, fix)


def _kernel(trainer: TrainerPlan) -> Iterator[Fault]:
    valid = KERNELS[trainer.optimizer]
    if trainer.optimizer_kernel not in valid:
        names = " or ".join(kernel.name for kernel in valid)
        message = f"{trainer.optimizer.name} has no such kernel; it has {names}"
        fix = "trainer.optimizer_kernel=null"
        yield Fault("trainer.optimizer_kernel", trainer.optimizer_kernel, message, fix)


def _sharing(trainer: TrainerPlan) -> Iterator[Fault]:
    for message, fix in sharing_faults(trainer):
        yield Fault("trainer.parallel", trainer.parallel, message, fix)


def _products(trainer: TrainerPlan) -> Iterator[Fault]:
    given = trainer.float32_matmul_precision
    if trainer.precision is Precision.tf32 and given is Float32Matmul.highest:
        message = "highest keeps fp32 products exact, tf32 rounds them"
        fix = "trainer.float32_matmul_precision=null, or trainer.precision=fp32"
        yield Fault("trainer.float32_matmul_precision", given, message, fix)


def _adapter(model: ModelPlan, trainer: TrainerPlan) -> Iterator[Fault]:
    if trainer.adapter is not Adapter.none and trainer.lora_rank > model.n_embd:
        message = f"a rank above the width ({model.n_embd}) has more weights than what it stands in for"
        yield Fault("trainer.lora_rank", trainer.lora_rank, message, f"trainer.lora_rank={min(8, model.n_embd)}")


def _bitsandbytes(trainer: TrainerPlan, kind: CardKind) -> Iterator[Fault]:
    if kind is not CardKind.mps:
        return
    if trainer.optimizer is Optimizer.adamw_8bit:
        message = "bitsandbytes has no 8-bit optimizer for Apple GPUs"
        yield Fault("trainer.optimizer", trainer.optimizer, message, "trainer.optimizer=adafactor")
    if trainer.adapter is Adapter.qlora:
        message = "bitsandbytes has no 4-bit matmul for Apple GPUs"
        yield Fault("trainer.adapter", trainer.adapter, message, "trainer.adapter=lora")


def _start(trainer: TrainerPlan) -> Iterator[Fault]:
    """The shapes are compared when the weights are read."""
    given = trainer.init_from
    if given is None:
        return
    folder = Path(given.removeprefix(HF_PREFIX))
    is_hf = given.startswith(HF_PREFIX)
    fix = "trainer.init_from=" + (
        "hf:DIR as save_pretrained writes it" if is_hf else "RUN_DIR, or hf:DIR with Hugging Face's files"
    )
    try:
        is_there = any(folder.glob("*.safetensors" if is_hf else "checkpoints/step_*.pt"))
        is_whole = is_there and (not is_hf or (folder / "config.json").is_file())
    except OSError as error:  # a name too long, no permission
        yield Fault("trainer.init_from", given, f"cannot be looked at: {error.strerror}", fix)
        return
    if not is_whole:
        message = "there is no config.json with *.safetensors beside it; a name on the hub is not looked up"
        yield Fault("trainer.init_from", given, message if is_hf else "there is no run with a checkpoint", fix)
