"""How long does the optimizer's own step take? Traffic of weights, gradients and states; Muon's matmuls; launches.

Bytes a parameter with everything in fp32, counted from PyTorch's kernels: fused ones read and write each tensor once;
foreach and loop run one elementwise kernel after the other over weights, gradients and states (torch/optim/adam.py,
sgd.py, adafactor.py, muon.py). Loops launch them tensor by tensor, and the host is what they wait for.
"""

from __future__ import annotations

from conf.choices import Optimizer, OptimizerKernel
from preflight.params import layer_matmul_params
from preflight.plan import ModelPlan, Precision, RunPlan
from preflight.step_time.card_rates import CardRates
from preflight.step_time.constants import StepConstants

FP32_BYTES, BF16_BYTES = 4, 2
FUSED_ADAMW_BYTES = 28.0  # reads weight, gradient, two moments; writes all but the gradient
# One by one: decay 8, first moment 12, second 24, root and division 16, epsilon 8, update 16.
BYTES_PER_PARAM = {
    (Optimizer.adamw, OptimizerKernel.fused): FUSED_ADAMW_BYTES,
    (Optimizer.adamw, OptimizerKernel.foreach): 84.0,
    (Optimizer.adamw, OptimizerKernel.loop): 84.0,
    (Optimizer.sgd, OptimizerKernel.fused): 20.0,
    (Optimizer.sgd, OptimizerKernel.foreach): 44.0,  # decay 12, momentum 20, update 12
    (Optimizer.sgd, OptimizerKernel.loop): 44.0,
}
ADAFACTOR_BYTES = 60.0  # squares, row and column means, the outer product, its root, update and two norms
EIGHT_BIT_BYTES = 16.0  # weight read and written, gradient read, two moments of a byte each
MUON_BYTES = 40.0  # momentum 12, Nesterov 12, decay 8, update 8 of 16-bit sums
N_KERNELS = {Optimizer.adamw: 10, Optimizer.sgd: 4, Optimizer.adafactor: 14, Optimizer.adamw_8bit: 1}
LAUNCH_SECONDS = 8e-6  # of one kernel from Python without autograd
N_TENSORS_PER_LAYER = 6  # matrices and norms
NEWTON_SCHULZ_STEPS = 5  # torch.optim.Muon's default (Jordan et al. 2024)
N_KERNELS_PER_NEWTON_SCHULZ = 5 * NEWTON_SCHULZ_STEPS + 8
# Of the rate of a wide matmul at this width: three small products after each other leave most of a card idle.
MUON_MATMUL_FRACTION = 0.5


def optimizer_seconds(
    plan: RunPlan, n_params: int, n_sharing: int, rates: CardRates, constants: StepConstants
) -> float:
    """One step over `n_params` trained parameters whose states `n_sharing` ranks share out among them."""
    trainer = plan.trainer
    clip = constants.clip_bytes_per_param if trainer.grad_clip > 0 else 0.0
    width_ratio = BF16_BYTES / FP32_BYTES if trainer.precision is Precision.bf16_pure else 1.0
    slowness = constants.optimizer_bytes_per_param / FUSED_ADAMW_BYTES  # where the fused kernel is not
    n_muon = _n_muon_params(plan) if trainer.optimizer is Optimizer.muon else 0
    n_bytes = clip * n_params + slowness * (
        MUON_BYTES * n_muon + _bytes_per_param(trainer.optimizer, trainer.optimizer_kernel) * (n_params - n_muon)
    )
    traffic = width_ratio * n_bytes / n_sharing / rates.bytes_per_second
    muon = _muon_seconds(plan.model, rates) if n_muon else 0.0
    return max(traffic, _launch_seconds(plan)) + muon / n_sharing


def _bytes_per_param(optimizer: Optimizer, kernel: OptimizerKernel) -> float:
    """Muon leaves the rest to AdamW."""
    if optimizer is Optimizer.adafactor:
        return ADAFACTOR_BYTES
    if optimizer is Optimizer.adamw_8bit:
        return EIGHT_BIT_BYTES
    rule = Optimizer.adamw if optimizer is Optimizer.muon else optimizer
    return BYTES_PER_PARAM[rule, kernel]


def _launch_seconds(plan: RunPlan) -> float:
    """Tensor by tensor, the host sets the pace of small models."""
    trainer = plan.trainer
    if trainer.optimizer_kernel is not OptimizerKernel.loop:
        return 0.0
    n_kernels = N_KERNELS.get(trainer.optimizer, N_KERNELS[Optimizer.adamw])
    return plan.model.n_layer * N_TENSORS_PER_LAYER * n_kernels * LAUNCH_SECONDS


def _n_muon_params(plan: RunPlan) -> int:
    """The matrices of the blocks."""
    return plan.model.n_layer * sum(layer_matmul_params(plan.model))


def _muon_seconds(model: ModelPlan, rates: CardRates) -> float:
    """Newton and Schulz's iteration on an m x n matrix, m <= n: X X^T, its square, and their product with X.

    2 m^2 n + 2 m^3 + 2 m^2 n operations a step. The matrices are taken to be n_embd on their narrow side.
    """
    narrow, n_params = model.n_embd, sum(layer_matmul_params(model))
    n_matrices = n_params / narrow / max(narrow, model.d_ff)
    flops = NEWTON_SCHULZ_STEPS * (4 * narrow * n_params + 2 * narrow**3 * n_matrices)
    rate = MUON_MATMUL_FRACTION * rates.matmul_flops_per_second_at(narrow)
    launches = N_KERNELS_PER_NEWTON_SCHULZ * n_matrices * LAUNCH_SECONDS
    return model.n_layer * max(flops / rate, launches)
