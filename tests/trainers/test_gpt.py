# ruff: noqa: TID253, N812 - torch is what is tested here
"""Is the model that trains the model that was billed?"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from conf.choices import Activation, Attention, Family, Norm, Positions, Tokenizer
from conf.schema import ModelConfig
from preflight.params import count_params
from preflight.plan import Checkpointing, ModelPlan
from preflight.resolve.presets import model_plan, preset_names
from trainers.gpt import GPT, IGNORED
from trainers.layers import rotate, rotation

MODEL_FOLDER = Path(__file__).parents[2] / "conf" / "model"
T = 16
SMALL = ModelPlan(
    name="small", family=Family.gpt2, n_layer=2, n_head=2, n_kv_head=2, n_embd=32, d_ff=128, vocab_size=64,
    tokenizer=Tokenizer.byte, tied_head=True, bias=False, dropout=0.0,
)  # fmt: skip
MODERN = {"norm": Norm.rmsnorm, "positions": Positions.rotary, "activation": Activation.relu2, "qk_norm": True}


def presets() -> list[ModelPlan]:
    return [plan for name in preset_names() if (plan := preset(name)) is not None]


def preset(name: str) -> ModelPlan | None:
    """None: the shape is somewhere else (model=hf)."""
    content = yaml.safe_load((MODEL_FOLDER / f"{name}.yaml").read_text())
    shape = {key: value for key, value in content.items() if key not in ("recipe", "defaults")}
    if shape["n_layer"] == 0:
        return None
    shape |= {"family": Family[shape["family"]], "tokenizer": Tokenizer[shape["tokenizer"]]}
    return model_plan(ModelConfig(**shape, recipe=None))


def n_params(model: GPT) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def batch(n_sequences: int = 4, length: int = T) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(SMALL.vocab_size, (n_sequences, length + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def small_gpt(
    checkpointing: Checkpointing = Checkpointing.none, attention: Attention = Attention.sdpa, **changes: object
) -> GPT:
    torch.manual_seed(1)
    return GPT(replace(SMALL, **changes), T, checkpointing, attention)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", presets(), ids=lambda model: model.name)
def test_gpt_has_the_parameters_of_the_bill_for_every_preset(model: ModelPlan):
    with torch.device("meta"):
        built = GPT(model, 1024)
    assert n_params(built) == count_params(model, 1024).total


@settings(max_examples=40, deadline=None)
@given(
    norm=st.sampled_from(Norm), positions=st.sampled_from(Positions), activation=st.sampled_from(Activation),
    bias=st.booleans(), qkv_bias=st.booleans(), qk_norm=st.booleans(), tied_head=st.booleans(),
    head_dim=st.sampled_from([0, 2, 10]), n_kv_head=st.sampled_from([1, 2, 4]), n_positions=st.sampled_from([None, 40]),
)  # fmt: skip
def test_gpt_has_the_parameters_of_the_bill_whatever_its_parts(**parts: object):
    odd = replace(SMALL, n_head=4, d_ff=96, **parts)  # type: ignore[arg-type]
    with torch.device("meta"):
        assert n_params(GPT(odd, T)) == count_params(odd, T).total


def test_gpt2_124m_has_the_parameters_that_its_users_know():
    with torch.device("meta"):  # 12 x 7,077,888 + 25 x 768 norms + 50,304 x 768 + 1,024 x 768
        model = GPT(next(model for model in presets() if model.name == "gpt2_124m"), 1024)
    assert n_params(model) == 84_934_656 + 19_200 + 38_633_472 + 786_432


def test_gpt_starts_at_the_loss_of_a_uniform_guess():
    model = small_gpt(n_layer=4, n_embd=64, d_ff=256)
    assert model(*batch(16)).item() == pytest.approx(math.log(SMALL.vocab_size), abs=0.05)


def test_gpt_scales_what_writes_into_the_residual_stream_by_depth():
    model = small_gpt(n_layer=8, n_embd=128, d_ff=512)
    weights = dict(model.named_parameters())
    assert weights["transformer.h.3.mlp.c_proj.weight"].std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert weights["transformer.h.3.mlp.c_fc.weight"].std().item() == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize("positions", Positions)
def test_gpt_looks_only_backwards(positions: Positions):
    model = small_gpt(positions=positions).eval()
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
    torch.testing.assert_close(block(x, None), by_hand)


def test_gpt_ignores_targets_that_do_not_count():
    model = small_gpt()
    inputs, targets = batch(4)
    alone = model(inputs[:2], targets[:2])
    targets = targets.clone()
    targets[2:] = IGNORED
    torch.testing.assert_close(model(inputs, targets), alone)


@pytest.mark.parametrize("attention", Attention)
@pytest.mark.parametrize("style", ["gpt2", "modern"])
def test_gpt_has_the_same_gradients_when_blocks_are_recomputed(style: str, attention: Attention):
    gradients = []
    for checkpointing in Checkpointing:
        model = small_gpt(checkpointing, attention, dropout=0.1, **(MODERN if style == "modern" else {}))
        torch.manual_seed(2)
        model(*batch()).backward()
        gradients.append(model.transformer["h"][0].attn.c_attn.weight.grad)
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0])


class Watch(TorchDispatchMode):
    """Counts operators, and the bytes of the storages that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.n_calls, self.living = Counter[str](), dict[int, int]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.n_calls[str(func)] += 1
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple) else (result,):
            if isinstance(made, torch.Tensor) and made.untyped_storage()._cdata not in self.living:
                storage = made.untyped_storage()
                self.living[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.living.pop, storage._cdata)
        return result


def test_gpt_keeps_less_for_the_backward_pass_when_blocks_are_recomputed():
    kept = {}
    for checkpointing in Checkpointing:
        model = small_gpt(checkpointing)
        with Watch() as watch:
            loss = model(*batch())
        kept[checkpointing] = sum(watch.living.values())
        assert loss.isfinite()
    full, selective, none = (kept[Checkpointing[name]] for name in ("full", "selective", "none"))
    stream = 4 * T * SMALL.n_embd * 4  # bytes of one (B, T, C)
    assert full < selective < none
    # of each block: q, k, v, attention and its projection, up and down; attention's log-sum-exp besides
    assert selective - full == pytest.approx(2 * (3 + 1 + 1 + 4 + 1) * stream, rel=0.05)


@pytest.mark.parametrize(("checkpointing", "n_again"), [("none", 0), ("selective", 0), ("full", 6)])
def test_gpt_computes_linears_twice_only_when_whole_blocks_are_recomputed(checkpointing: str, n_again: int):
    with Watch() as watch:
        small_gpt(Checkpointing[checkpointing])(*batch()).backward()
    # four linears in each of two blocks, and the head, with two gradients each; each block's last linear is not redone
    assert watch.n_calls["aten.mm.default"] == 3 * (2 * 4 + 1) + n_again


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gpt_warns_of_nothing_under_autocast_and_in_pure_bf16(dtype: torch.dtype):
    model = small_gpt(**MODERN, tied_head=False, n_kv_head=1).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.float32):
        model(*batch()).backward()  # warnings are errors
    assert {parameter.grad.dtype for parameter in model.parameters()} == {dtype}  # type: ignore[union-attr]


def test_rotary_positions_look_at_distances_alone():
    """Queries and keys at positions 3 and 7 score as at 13 and 17 (Su et al. 2021)."""
    q, k = torch.randn(2, 1, 1, 1, 8)
    cosines, sines = rotation(20, 8, 10_000.0, torch.device("cpu"))
    at = [rotate(x, (cosines[i : i + 1], sines[i : i + 1])) for x, i in ((q, 3), (k, 7), (q, 13), (k, 17))]
    torch.testing.assert_close((at[0] * at[1]).sum(), (at[2] * at[3]).sum())
    assert not torch.allclose((at[0] * at[1]).sum(), (at[0] * at[3]).sum())


def test_generate_repeats_itself_at_temperature_zero_and_stays_in_the_vocabulary():
    model = small_gpt().eval()
    start = torch.zeros(1, 1, dtype=torch.long)
    greedy = model.generate(start, 2 * T, temperature=0)  # longer than the positions reach
    assert greedy.shape == (1, 2 * T + 1)
    assert torch.equal(greedy, model.generate(start, 2 * T, temperature=0))
    assert torch.equal(model.generate(start, T, top_k=1), model.generate(start, T, temperature=0))
