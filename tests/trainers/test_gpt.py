# ruff: noqa: TID253, N812 - torch is what is tested here
"""Is the model that trains the model that was billed?"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from torch.nn import functional as F

from conf.choices import Family, Tokenizer
from preflight.params import count_params
from preflight.plan import Checkpointing, ModelPlan
from trainers.gpt import GPT, IGNORED, make_optimizer

MODEL_FOLDER = Path(__file__).parents[2] / "conf" / "model"
T = 16
SMALL = ModelPlan(
    name="small", family=Family.gpt2, n_layer=2, n_head=2, n_kv_head=2, n_embd=32, d_ff=128, vocab_size=64,
    tokenizer=Tokenizer.byte, tied_head=True, bias=False, dropout=0.0,
)  # fmt: skip


def gpt2_presets() -> list[ModelPlan]:
    presets = [yaml.safe_load(path.read_text()) for path in sorted(MODEL_FOLDER.glob("*.yaml"))]
    return [
        ModelPlan(
            name=preset["name"], family=Family.gpt2, n_layer=preset["n_layer"], n_head=preset["n_head"],
            n_kv_head=preset.get("n_kv_head", preset["n_head"]), n_embd=preset["n_embd"],
            d_ff=preset.get("d_ff", 4 * preset["n_embd"]), vocab_size=preset["vocab_size"],
            tokenizer=Tokenizer[preset["tokenizer"]], tied_head=preset["tied_head"], bias=preset.get("bias", False),
            dropout=preset.get("dropout", 0.0),
        )
        for preset in presets
        if preset["family"] == "gpt2"
    ]  # fmt: skip


def n_params(model: GPT) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def batch(n_sequences: int = 4, length: int = T) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(SMALL.vocab_size, (n_sequences, length + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def small_gpt(checkpointing: Checkpointing = Checkpointing.none, **changes: object) -> GPT:
    torch.manual_seed(1)
    return GPT(replace(SMALL, **changes), T, checkpointing)  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", gpt2_presets(), ids=lambda preset: preset.name)
def test_gpt_has_the_parameters_of_the_bill_for_every_preset(preset: ModelPlan):
    with torch.device("meta"):
        model = GPT(preset, 1024)
    assert n_params(model) == count_params(preset, 1024).total


def test_gpt_has_the_parameters_of_the_bill_when_biased_untied_and_with_fewer_key_heads():
    odd = replace(SMALL, bias=True, qkv_bias=True, tied_head=False, n_head=4, n_kv_head=2, d_ff=96)
    assert n_params(GPT(odd, T)) == count_params(odd, T).total


def test_gpt2_124m_has_the_parameters_that_its_users_know():
    with torch.device("meta"):  # 12 x 7,077,888 + 25 x 768 norms + 50,304 x 768 + 1,024 x 768
        model = GPT(next(preset for preset in gpt2_presets() if preset.name == "gpt2_124m"), 1024)
    assert n_params(model) == 84_934_656 + 19_200 + 38_633_472 + 786_432


def test_gpt_starts_at_the_loss_of_a_uniform_guess():
    model = small_gpt(n_layer=4, n_embd=64, d_ff=256)
    assert model(*batch(16)).item() == pytest.approx(math.log(SMALL.vocab_size), abs=0.05)


def test_gpt_scales_what_writes_into_the_residual_stream_by_depth():
    model = small_gpt(n_layer=8, n_embd=128, d_ff=512)
    weights = dict(model.named_parameters())
    assert weights["transformer.h.3.mlp.c_proj.weight"].std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert weights["transformer.h.3.mlp.c_fc.weight"].std().item() == pytest.approx(0.02, rel=0.02)


def test_gpt_looks_only_backwards():
    model = small_gpt().eval()
    inputs, _ = batch(1)
    changed = inputs.clone()
    changed[0, 9] = (changed[0, 9] + 1) % SMALL.vocab_size
    assert torch.equal(model(inputs[:, :9]), model(changed[:, :9]))
    assert not torch.equal(model(inputs[:, :10]), model(changed[:, :10]))


def test_gpt_gives_the_last_position_only_when_there_are_no_targets():
    assert small_gpt()(batch()[0]).shape == (4, SMALL.vocab_size)


def test_gpt_equals_attention_written_out_by_hand():
    block = small_gpt().transformer["h"][0].attn
    x = torch.randn(2, T, 32)
    q, k, v = (part.view(2, T, 2, 16).transpose(1, 2) for part in block.c_attn(x).split(32, dim=2))
    scores = (q @ k.transpose(-2, -1) / 4.0).masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
    by_hand = block.c_proj((F.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(2, T, 32))
    torch.testing.assert_close(block(x), by_hand)


def test_gpt_ignores_targets_that_do_not_count():
    model = small_gpt()
    inputs, targets = batch(4)
    alone = model(inputs[:2], targets[:2])
    targets = targets.clone()
    targets[2:] = IGNORED
    torch.testing.assert_close(model(inputs, targets), alone)


def test_gpt_has_the_same_gradients_when_blocks_are_recomputed():
    gradients = []
    for checkpointing in Checkpointing:
        model = small_gpt(checkpointing, dropout=0.1)
        torch.manual_seed(2)
        model(*batch()).backward()
        gradients.append(model.lm_head.weight.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_gpt_keeps_less_for_the_backward_pass_when_blocks_are_recomputed():
    kept = []
    for checkpointing in Checkpointing:
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, s=sizes: s.append(x.nbytes) or x, lambda x: x):
            small_gpt(checkpointing)(*batch())
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 2


def test_generate_repeats_itself_at_temperature_zero_and_stays_in_the_vocabulary():
    model = small_gpt().eval()
    start = torch.zeros(1, 1, dtype=torch.long)
    greedy = model.generate(start, 2 * T, temperature=0)  # longer than the positions reach
    assert greedy.shape == (1, 2 * T + 1)
    assert torch.equal(greedy, model.generate(start, 2 * T, temperature=0))
    assert torch.equal(model.generate(start, T, top_k=1), model.generate(start, T, temperature=0))


def test_make_optimizer_decays_matrices_and_embeddings_only(make_plan):
    model = small_gpt(bias=True, qkv_bias=True)
    decayed, not_decayed = make_optimizer(model, make_plan().trainer).param_groups
    assert (decayed["weight_decay"], not_decayed["weight_decay"]) == (0.1, 0.0)
    assert {p.dim() for p in decayed["params"]} == {2}
    assert {p.dim() for p in not_decayed["params"]} == {1}
    assert len(decayed["params"]) + len(not_decayed["params"]) == len(list(model.parameters()))
