"""FLOPs against hand-worked counts and against two public logs."""

from preflight.step_time.flops import (
    attention_forward_flops_per_token,
    head_forward_flops_per_token,
    layer_forward_flops_per_token,
    train_flops_per_token,
)
from tests.conftest import GPT2_124M, LLAMA_7B


def test_gpt2_small_layers_multiply_twelve_width_squared_a_layer() -> None:
    assert layer_forward_flops_per_token(GPT2_124M) == 2 * 12 * 12 * 768**2


def test_head_multiplies_every_logit_although_it_is_tied() -> None:
    assert head_forward_flops_per_token(GPT2_124M) == 2 * 768 * 50304


def test_causal_attention_counts_half_of_the_square() -> None:
    whole_square_per_sequence = 12 * 2 * (2 * 1024 * 1024 * 768)  # layers x (q k^T, p v)
    assert attention_forward_flops_per_token(GPT2_124M, 1024) * 1024 == whole_square_per_sequence // 2


def test_training_is_three_forwards() -> None:
    forward = 2 * 12 * 12 * 768**2 + 2 * 12 * 1024 * 768 + 2 * 768 * 50304
    assert train_flops_per_token(GPT2_124M, 1024) == 3 * forward


def test_nanogpt_counts_the_whole_attention_square() -> None:
    """nanoGPT's 6N + 12 L H Q T (its N leaves out positions) is ours plus the masked half: 854.8e6 a token."""
    n_params_without_positions = 12 * (12 * 768**2 + 2 * 768) + 768 + 50304 * 768
    nanogpt = 6 * n_params_without_positions + 12 * 12 * 768 * 1024
    assert abs(nanogpt - 854.8e6) < 0.1e6
    norms = 6 * (12 * 2 * 768 + 768)
    assert nanogpt == train_flops_per_token(GPT2_124M, 1024) + 6 * 12 * 768 * 1024 + norms


def test_v100_log_line_gives_its_own_utilisation() -> None:
    """karpathy/nanoGPT#215: 1097 ms for 61,440 tokens printed as 15.34 % of 312 TFLOPS."""
    nanogpt_flops_per_token = 854.77e6
    assert round(nanogpt_flops_per_token * 61440 / 1.097 / 312e12, 4) == 0.1534


def test_llama_layer_has_a_gate() -> None:
    assert layer_forward_flops_per_token(LLAMA_7B) == 2 * 32 * (4 * 4096**2 + 3 * 4096 * 11008)
