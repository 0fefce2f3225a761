"""Which earlier runs are of the same plan, and how much does one plan tell about another?

Two plans are the same when one step of theirs is: length, intervals and learning rates do not count.
"""

from __future__ import annotations

import json
from math import exp, log

from preflight.params import count_params
from preflight.plan import RunPlan
from preflight.planfile import to_jsonable

MAX_LIKENESS = 0.7  # of two plans that are not the same: some of the formula's error is of a single shape
KINDS_OF_STEP = ("activation_checkpointing", "attention", "optimizer", "adapter", "parallel")  # each is as far as 1
KINDS_OF_BLOCK = ("norm", "positions", "activation")
NAMES_OF_A_MODEL = ("name", "tokenizer", "path", "norm_eps", "rope_theta")
# What changes neither the time nor the memory of one step.
BESIDE_THE_STEP = (
    "tokens_per_step", "n_steps", "learning_rate", "min_learning_rate", "n_warmup_steps", "weight_decay", "beta1",
    "beta2", "muon_learning_rate", "eval_interval", "n_eval_sequences", "eval_micro_batch_size", "checkpoint_interval",
    "keep_checkpoints", "log_interval", "init_from", "lora_alpha", "precision", "compile",
    "keep_best", "save_beside", "max_nonfinite_steps",
)  # fmt: skip
# Plans are alike when their sizes are: distances of logarithms, in units of these.
LIKENESS_SCALES = {"params": log(4), "tokens_per_pass": log(4), "sequence": log(4), "passes": log(8), "ranks": log(2)}


def key_of(plan: RunPlan) -> str:
    """What makes a plan the same as far as one step goes."""
    shape = {name: value for name, value in to_jsonable(plan.model).items() if name not in NAMES_OF_A_MODEL}
    trainer = {name: value for name, value in to_jsonable(plan.trainer).items() if name not in BESIDE_THE_STEP}
    return json.dumps([shape, trainer, plan.hw.n_nodes, plan.hw.n_gpus_per_node], sort_keys=True)


def likeness(one: RunPlan, other: RunPlan) -> float:
    """A Gaussian of the distance between two plans' sizes: MAX_LIKENESS when they are equal."""
    a, b = _sizes(one), _sizes(other)
    squares = sum((log(a[name] / b[name]) / scale) ** 2 for name, scale in LIKENESS_SCALES.items())
    squares += sum(getattr(one.trainer, name) != getattr(other.trainer, name) for name in KINDS_OF_STEP)
    squares += sum(getattr(one.model, name) is not getattr(other.model, name) for name in KINDS_OF_BLOCK)
    return MAX_LIKENESS * exp(-squares / 2)


def _sizes(plan: RunPlan) -> dict[str, int]:
    trainer = plan.trainer
    return {
        "params": count_params(plan.model, trainer.sequence_length).total,
        "tokens_per_pass": trainer.micro_batch_size * trainer.sequence_length,
        "sequence": trainer.sequence_length,
        "passes": trainer.grad_accum_steps,
        "ranks": plan.hw.world_size,
    }
