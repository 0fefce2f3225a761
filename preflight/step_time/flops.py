"""How many floating point operations does training take? Matmuls only, 2 per multiply-add; norms and softmax are < 1 %.

Counted as Megatron-LM's `num_floating_point_operations` does: every weight matrix of the layers and the head (tied or
not), core attention halved because it is causal (Korthikanti et al. 2022, arXiv:2205.05198, appendix A, counts it
whole), the backward pass twice the forward. Recomputation is not model FLOPs (PaLM, arXiv:2204.02311, appendix B).
"""

from __future__ import annotations

from conf.choices import Adapter
from preflight.params import adapter_params, layer_matmul_params, q_dim
from preflight.plan import ModelPlan, RunPlan

BACKWARD_PER_FORWARD = 2  # one matmul for the input's gradient, one for the weight's
FLOPS_PER_MULTIPLY_ADD = 2


def layer_forward_flops_per_token(model: ModelPlan) -> int:
    """The weight matrices of all layers."""
    attention, mlp = layer_matmul_params(model)
    return FLOPS_PER_MULTIPLY_ADD * model.n_layer * (attention + mlp)


def attention_forward_flops_per_token(model: ModelPlan, sequence_length: int) -> int:
    """Scores and weighted values over the half of the positions that a causal mask leaves, mean of a sequence."""
    n_products = 2  # q k^T, p v
    return FLOPS_PER_MULTIPLY_ADD * n_products * model.n_layer * q_dim(model) * sequence_length // 2


def head_forward_flops_per_token(model: ModelPlan) -> int:
    """The logits."""
    return FLOPS_PER_MULTIPLY_ADD * model.n_embd * model.vocab_size


def plan_flops_per_token(plan: RunPlan) -> int:
    """As the plan trains: frozen weights under adapters have no gradient, so two products of three."""
    model, trainer = plan.model, plan.trainer
    if trainer.adapter is Adapter.none:
        return train_flops_per_token(model, trainer.sequence_length)
    frozen = layer_forward_flops_per_token(model) + head_forward_flops_per_token(model)
    adapters = FLOPS_PER_MULTIPLY_ADD * adapter_params(model, trainer.lora_targets, trainer.lora_rank)
    whole = attention_forward_flops_per_token(model, trainer.sequence_length) + adapters
    return BACKWARD_PER_FORWARD * frozen + (1 + BACKWARD_PER_FORWARD) * whole


def train_flops_per_token(model: ModelPlan, sequence_length: int) -> int:
    """Forward and backward: what MFU divides by."""
    forward = (
        layer_forward_flops_per_token(model)
        + attention_forward_flops_per_token(model, sequence_length)
        + head_forward_flops_per_token(model)
    )
    return (1 + BACKWARD_PER_FORWARD) * forward
