"""Parameter counts against published totals and hand-worked sums."""

import dataclasses

import pytest

from conf.choices import Activation, Family, Norm, Positions, Tokenizer
from preflight.params import count_params, kv_dim, matmul_params
from preflight.plan import ModelPlan

GPT2_SMALL = ModelPlan(
    name="gpt2_124m",
    family=Family.gpt2,
    n_layer=12,
    n_head=12,
    n_kv_head=12,
    n_embd=768,
    d_ff=3072,
    vocab_size=50257,
    tokenizer=Tokenizer.gpt2,
    tied_head=True,
    bias=True,
    qkv_bias=True,
    dropout=0.0,
)


def llama(n_layer, n_head, n_kv_head, n_embd, d_ff, vocab_size=32000, *, tied_head=False, **parts):
    return ModelPlan(
        name="llama",
        family=Family.llama,
        n_layer=n_layer,
        n_head=n_head,
        n_kv_head=n_kv_head,
        n_embd=n_embd,
        d_ff=d_ff,
        vocab_size=vocab_size,
        tokenizer=Tokenizer.other,
        tied_head=tied_head,
        bias=False,
        dropout=0.0,
        norm=Norm.rmsnorm,
        positions=Positions.rotary,
        activation=Activation.swiglu,
        **parts,
    )


def test_gpt2_small_has_124_439_808_parameters():
    # a layer: 4d^2+4d attention, 8d^2+5d MLP, 4d norms = 7,087,872 with d = 768
    assert 12 * 768**2 + 13 * 768 == 7_087_872
    assert count_params(GPT2_SMALL, 1024).total == 50257 * 768 + 1024 * 768 + 12 * 7_087_872 + 2 * 768 == 124_439_808


def test_gpt2_small_without_bias_loses_every_bias():
    plain = dataclasses.replace(GPT2_SMALL, bias=False, qkv_bias=False)
    biases = 12 * (3 * 768 + 768 + 3072 + 768 + 2 * 768) + 768  # qkv, proj, fc, proj, two LayerNorms; final LayerNorm
    assert count_params(plain, 1024).total == 124_439_808 - biases == 124_337_664


def test_nanogpt_padded_vocabulary_has_124_373_760_parameters():
    # nanoGPT prints 123.59M without the 786,432 positions
    padded = dataclasses.replace(GPT2_SMALL, bias=False, qkv_bias=False, vocab_size=50304)
    assert count_params(padded, 1024).total == 124_373_760


@pytest.mark.parametrize(
    ("model", "total"),
    [
        pytest.param(llama(32, 32, 32, 4096, 11008), 6_738_415_616, id="Llama-2-7B"),
        pytest.param(llama(40, 40, 40, 5120, 13824), 13_015_864_320, id="Llama-2-13B"),
        pytest.param(llama(80, 64, 8, 8192, 28672), 68_976_648_192, id="Llama-2-70B"),
        pytest.param(llama(22, 32, 4, 2048, 5632), 1_100_048_384, id="TinyLlama-1.1B"),
        pytest.param(llama(32, 32, 8, 4096, 14336, 128256), 8_030_261_248, id="Llama-3-8B"),
        pytest.param(llama(32, 32, 8, 4096, 14336), 7_241_732_096, id="Mistral-7B-v0.1"),
        pytest.param(llama(24, 14, 2, 896, 4864, 151936, tied_head=True, qkv_bias=True), 494_032_768, id="Qwen2-0.5B"),
        pytest.param(
            llama(28, 16, 8, 1024, 3072, 151936, tied_head=True, qk_norm=True, head_dim=128),
            596_049_920,
            id="Qwen3-0.6B",
        ),
    ],
)
def test_llama_like_models_have_their_published_count(model, total):
    assert count_params(model, 4096).total == total


def test_positions_are_learned_only_by_gpt2():
    longer = count_params(GPT2_SMALL, 2048).total - count_params(GPT2_SMALL, 1024).total
    assert longer == 1024 * 768
    model = llama(22, 32, 4, 2048, 5632)
    assert count_params(model, 1024) == count_params(model, 4096)


def test_untied_head_is_counted_once_more():
    untied = dataclasses.replace(GPT2_SMALL, tied_head=False)
    assert count_params(untied, 1024).total - count_params(GPT2_SMALL, 1024).total == 50257 * 768


def test_matmul_params_are_the_layers_and_the_head_tied_or_not():
    expected = 12 * 12 * 768**2 + 50257 * 768
    assert matmul_params(GPT2_SMALL) == matmul_params(dataclasses.replace(GPT2_SMALL, tied_head=False)) == expected


def test_kv_dim_shrinks_with_grouped_heads():
    assert kv_dim(llama(22, 32, 4, 2048, 5632)) == 2048 // 8


def test_positions_have_the_rows_that_the_model_says():
    fixed = dataclasses.replace(GPT2_SMALL, n_positions=1024)
    assert count_params(fixed, 256).total == count_params(GPT2_SMALL, 1024).total


def test_squared_relu_has_no_gate():
    squared = dataclasses.replace(GPT2_SMALL, activation=Activation.relu2)
    assert count_params(squared, 1024) == count_params(GPT2_SMALL, 1024)
