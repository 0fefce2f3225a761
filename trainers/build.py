"""The model of a plan, ready to be trained: drawn or read, adapted, in its precision, on its device.

Weights are drawn on the CPU from the plan's seed: the same on every device and any number of ranks. What adapters leave
frozen is not in the checkpoints; it is drawn or read again from here, which is why `init_from` must still be there.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from conf.choices import Adapter
from preflight.errors import ConfigError, Problem
from preflight.plan import Precision, RunPlan
from preflight.planfile import from_jsonable
from preflight.products import rounds_products
from trainers import checkpoint, hf_weights, lora
from trainers.gpt import GPT
from trainers.precision import weight_dtype
from trainers.rounding import round_products

HF_PREFIX = "hf:"


def build_model(plan: RunPlan, device: torch.device | str = "cpu") -> GPT:
    """Everything but the checkpoint's weights."""
    trainer = plan.trainer
    torch.manual_seed(plan.seed)
    if torch.device(device).type == "meta":  # `trainers.sharding` draws what this process is to hold
        with torch.device(device):
            return _rounded(GPT.of(plan), plan)
    model = GPT.of(plan)
    if trainer.init_from is not None:
        start_from(model, plan, trainer.init_from)
    if trainer.adapter is not Adapter.none:
        lora.adapt(model, trainer)
    if trainer.precision is Precision.bf16_pure:  # frozen 16-bit matrices of adapters stay as they are
        model.to(weight_dtype(trainer.precision))
    lora.quantize(model, trainer, device)
    return _rounded(model.to(device), plan)


def _rounded(model: GPT, plan: RunPlan) -> GPT:
    """Its products, where the plan lets them be."""
    if rounds_products(plan):
        round_products(model)
    return model


def start_from(model: GPT, plan: RunPlan, source: str) -> None:
    """Weights of a Hugging Face folder, or of the newest sound checkpoint of a run."""
    if source.startswith(HF_PREFIX):
        from safetensors import SafetensorError  # an extra, which the launcher has looked for

        folder = Path(source.removeprefix(HF_PREFIX))
        try:
            weights = hf_weights.read_folder(folder, plan.model)
        except FileNotFoundError as error:  # it may have been there when the plan was made
            raise _refused(source, str(error), "the folder put back, or another one") from error
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            message = f"its weights cannot be read: {error} (cut short while copied?)"
            raise _refused(source, message, "the files copied again, whole, or another folder") from error
    else:
        weights = weights_of_run(Path(source))
    fill(model, weights, source)


def weights_of_run(run_dir: Path) -> dict[str, Tensor]:
    """Of a plain model, adapters melted in."""
    path, _ = checkpoint.find_latest(run_dir)
    if path is None:
        raise _refused(str(run_dir), "no sound checkpoint there", "trainer.init_from= with a run's folder, or hf:DIR")
    return lora.merged_state(load_trained(path)[0])


def load_trained(path: Path, device: torch.device | str = "cpu") -> tuple[GPT, RunPlan, int]:
    """The model of a checkpoint, its plan, and the steps it was trained for."""
    saved = checkpoint.load(path)
    plan = from_jsonable(RunPlan, json.loads(saved["plan"]))
    is_whole = plan.trainer.adapter is Adapter.none
    model = build_model(replace(plan, trainer=replace(plan.trainer, init_from=None)) if is_whole else plan, device)
    model.load_state_dict(saved["model"], strict=is_whole)
    return model, plan, saved["step"]


def melted(model: GPT, plan: RunPlan, device: torch.device | str = "cpu") -> GPT:
    """The plain model that does the same, in the type of trained weights: it computes without the run's autocast."""
    if plan.trainer.adapter is Adapter.none:
        return model
    plain = build_model(replace(plan, trainer=replace(plan.trainer, adapter=Adapter.none, init_from=None)), device)
    plain.load_state_dict(lora.merged_state(model))
    return plain


def fill(model: GPT, weights: dict[str, Tensor], source: str) -> None:
    """Every weight; rows that only a larger vocabulary has stay as drawn, further positions are left out."""
    own = model.state_dict()
    faults = []
    with torch.no_grad():
        for name, tensor in own.items():
            if name not in weights:
                continue
            given = weights[name]
            if name.endswith("wpe.weight"):
                given = given[: tensor.size(0)]
            elif name in ("transformer.wte.weight", "lm_head.weight") and given.size(0) < tensor.size(0):
                tensor = tensor[: given.size(0)]
            if given.shape == tensor.shape:
                tensor.copy_(given)
            else:
                faults.append(f"{name} is {_shape(given)}, the model has {_shape(tensor)}")
    faults += [f"{name} is missing" for name in own if name not in weights]
    faults += [f"{name} is not part of the model" for name in weights.keys() - own if not _is_nothing(name, weights)]
    if faults:
        shown = "; ".join(faults[:4]) + (f"; and {len(faults) - 4} more" if len(faults) > 4 else "")
        raise _refused(source, shown, "model=hf model.path= with the same folder, or the model of that run")


def _is_nothing(name: str, weights: dict[str, Tensor]) -> bool:
    """A bias of zeros, which some formats have where a model has none."""
    return name.endswith(".bias") and not weights[name].any()


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))


def _refused(source: str, message: str, fix: str) -> ConfigError:
    return ConfigError([Problem(path="trainer.init_from", value=source, message=message, fix=fix)])
