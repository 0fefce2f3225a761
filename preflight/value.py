"""Is the run worth it? Tokens per parameter, the loss to expect, and what the last quarter of the money buys.

Loss law L(N, D) = E + A/N^a + B/D^b of Hoffmann et al. 2022 (arXiv:2203.15556), with the constants of Besiroglu et al.
2024 (arXiv:2404.10102), who found the published fit of its third approach wrong. It holds for BPE models on web text
inside the range it was fitted on; elsewhere the answer is None. Repeated tokens count less and less (Muennighoff et al.
2023, arXiv:2305.16264). All of that is of training from scratch: of weights that are trained already it says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, pow

from conf.choices import Adapter, DataKind, Tokenizer
from preflight.band import Band
from preflight.params import adapter_params, count_params
from preflight.plan import RunPlan

IRREDUCIBLE_LOSS = 1.8172
PARAMS_COEFFICIENT, PARAMS_EXPONENT = 482.01, 0.3478
TOKENS_COEFFICIENT, TOKENS_EXPONENT = 2085.43, 0.3658
FITTED_PARAMS = (40e6, 20e9)  # models of 44M to 16B
FITTED_TOKENS = (2e8, 1.5e12)
COMPUTE_OPTIMAL_TOKENS_PER_PARAM = 20
REPEATS_SCALE = 15.39  # R_D* of Muennighoff et al.: repetitions after which new passes are worth 1/e
WEB_TEXT = (DataKind.openwebtext, DataKind.fineweb_edu)
# nats per token. Another tokenizer and another web text shift the law: nanoGPT's 124M on OpenWebText ends near 2.85
# after 300B tokens where the law says 2.69, llm.c's on FineWeb at 3.28 after 10B where it says 3.01.
LOSS_MARGIN_LOW = -0.08
LOSS_MARGIN_HIGH = 0.30


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueEstimate:
    """`expected_loss` is None where the law was not fitted (byte-level models, other data, fine-tuning)."""

    tokens_per_param: float
    n_epochs: float | None  # over the training tokens; None when their number is unknown
    expected_loss: Band | None
    expected_loss_at_three_quarters: float | None  # what the last quarter of the money buys
    compute_optimal_tokens: int | None  # about 20 a parameter; None: fine-tuning, of which that is not known
    n_tuned_params: int | None = None  # of fine-tuning: weights that change; None: trained from scratch


def estimate_value(plan: RunPlan) -> ValueEstimate:
    """Hoffmann et al. 2022, within its range."""
    n_params = count_params(plan.model, plan.trainer.sequence_length).total
    n_tokens = plan.trainer.total_tokens
    n_unique = plan.data.n_train_tokens
    n_tuned = _n_tuned_params(plan, n_params)
    loss = _loss_in_range(plan, n_params, n_tokens) if n_tuned is None else None
    return ValueEstimate(
        tokens_per_param=n_tokens / n_params,
        n_epochs=n_tokens / n_unique if n_unique else None,
        expected_loss=loss,
        expected_loss_at_three_quarters=(
            expected_loss(n_params, effective_tokens(0.75 * n_tokens, n_unique)) if loss else None
        ),
        compute_optimal_tokens=COMPUTE_OPTIMAL_TOKENS_PER_PARAM * n_params if n_tuned is None else None,
        n_tuned_params=n_tuned,
    )


def _n_tuned_params(plan: RunPlan, n_params: int) -> int | None:
    trainer = plan.trainer
    if trainer.adapter is not Adapter.none:
        return adapter_params(plan.model, trainer.lora_targets, trainer.lora_rank)
    return n_params if trainer.init_from is not None else None


def _loss_in_range(plan: RunPlan, n_params: int, n_tokens: int) -> Band | None:
    is_bpe_on_web_text = plan.model.tokenizer is not Tokenizer.byte and plan.data.kind in WEB_TEXT
    is_fitted = FITTED_PARAMS[0] <= n_params <= FITTED_PARAMS[1] and FITTED_TOKENS[0] <= n_tokens <= FITTED_TOKENS[1]
    if not (is_bpe_on_web_text and is_fitted):
        return None
    mid = expected_loss(n_params, effective_tokens(n_tokens, plan.data.n_train_tokens))
    return Band(low=mid + LOSS_MARGIN_LOW, mid=mid, high=mid + LOSS_MARGIN_HIGH, source="arXiv:2404.10102")


def expected_loss(n_params: float, n_tokens: float) -> float:
    """Nats per token at the end of training."""
    return (
        IRREDUCIBLE_LOSS
        + PARAMS_COEFFICIENT / pow(n_params, PARAMS_EXPONENT)
        + TOKENS_COEFFICIENT / pow(n_tokens, TOKENS_EXPONENT)
    )


def effective_tokens(n_tokens: float, n_unique: int | None) -> float:
    """What repeated passes over `n_unique` tokens are worth in fresh ones; None: all are fresh."""
    if n_unique is None or n_tokens <= n_unique:
        return float(n_tokens)
    n_repeats = n_tokens / n_unique - 1
    return n_unique * (1 + REPEATS_SCALE * (1 - exp(-n_repeats / REPEATS_SCALE)))
