"""Do the same weights mean the same on Hugging Face's side? Random small models, both ways, logits within 1e-5."""

# ruff: noqa: TID253 - torch is what is tested here
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.choices import Activation, Family, Norm, Positions, Tokenizer
from conf.schema import ModelConfig, RecipeConfig
from preflight.errors import ConfigError
from preflight.plan import ModelPlan, RunPlan
from preflight.resolve.hf import from_folder
from preflight.resolve.presets import model_plan
from preflight.resolve.resolution import Resolution
from trainers import build, hf_weights
from trainers.gpt import GPT

Plans = Callable[..., RunPlan]
T = 16
RECIPE = RecipeConfig(sequence_length=T, micro_batch_size=1, tokens_per_step=T, total_tokens=T, learning_rate=1e-3)
SIZES = {
    "gpt2": {"n_layer": 2, "n_head": 4, "n_embd": 32, "vocab_size": 64, "n_positions": 24,
             "activation_function": "gelu_new"},
    "llama": {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32,
              "intermediate_size": 48, "vocab_size": 64, "head_dim": 10, "rms_norm_eps": 1e-6, "rope_theta": 5e4},
}  # fmt: skip
SIZES |= {
    "gpt2-untied": SIZES["gpt2"] | {"n_inner": 80, "activation_function": "gelu", "tie_word_embeddings": False},
    "llama-tied": SIZES["llama"] | {"tie_word_embeddings": True, "head_dim": 8},
    "mistral": SIZES["llama"] | {"num_key_value_heads": 4, "sliding_window": None},
    "qwen2": {key: value for key, value in SIZES["llama"].items() if key != "head_dim"},
    "qwen3": SIZES["llama"],
}  # fmt: skip


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers")


def theirs(transformers: Any, name: str) -> Any:
    """A random model of theirs; biases and norms are drawn too, or they would not be tested."""
    config = transformers.AutoConfig.for_model(name.partition("-")[0], **SIZES[name], attn_implementation="eager")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def plan_of(folder: Path) -> ModelPlan:
    empty = ModelConfig(
        name="hf", family=Family.gpt2, n_layer=0, n_head=0, n_embd=0, vocab_size=0, tokenizer=Tokenizer.other,
        tied_head=True, path=str(folder), recipe=RECIPE,
    )  # fmt: skip
    resolution = Resolution()
    model = model_plan(from_folder(empty, resolution))
    assert not resolution.problems
    return replace(model, dropout=0.0)


def logits(model: GPT, idx: torch.Tensor) -> torch.Tensor:
    """Of every position: ours says the last one's only."""
    with torch.no_grad():
        return torch.stack([model(idx[:, : n + 1]) for n in range(idx.size(1))], dim=1)


@pytest.mark.parametrize("name", SIZES)
def test_weights_of_a_folder_give_the_same_logits_and_go_back_unchanged(
    transformers: Any, make_plan: Plans, tmp_path: Path, name: str
):
    model = theirs(transformers, name)
    model.save_pretrained(tmp_path / "theirs")
    shape = plan_of(tmp_path / "theirs")
    plan = make_plan(model=shape, card="cpu", trainer={"init_from": f"hf:{tmp_path / 'theirs'}"}, sequence_length=T)
    ours = build.build_model(plan).eval()
    idx = torch.randint(64, (2, T), generator=torch.Generator().manual_seed(1))
    expected = model(idx).logits
    torch.testing.assert_close(logits(ours, idx), expected, rtol=0, atol=1e-5)

    config, tensors = hf_weights.to_hugging_face(ours.state_dict(), shape, T)
    hf_weights.write_folder(tmp_path / "ours", config, tensors)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    torch.testing.assert_close(again(idx).logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", Family)
def test_random_model_of_ours_gives_the_same_logits_over_there(
    transformers: Any, make_plan: Plans, tmp_path: Path, family: Family
):
    """Without biases, which their GPT-2 always has: zeros are written."""
    style = {"gpt2": {"activation": Activation.gelu}, "llama": {
        "norm": Norm.rmsnorm, "positions": Positions.rotary, "activation": Activation.swiglu, "n_kv_head": 1,
        "tied_head": False,
    }}[family.name]  # fmt: skip
    shape = replace(make_plan(model="tiny").model, family=family, **style)
    ours = build.build_model(make_plan(model=shape, card="cpu", sequence_length=T)).eval()
    hf_weights.write_folder(tmp_path, *hf_weights.to_hugging_face(ours.state_dict(), shape, T))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    idx = torch.randint(256, (2, T), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(logits(ours, idx), model(idx).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"activation": Activation.relu2, "positions": Positions.rotary}, "layernorm, rotary, relu2"),
     ({"qk_norm": True}, "query-key norms")],
)  # fmt: skip
def test_parts_that_no_class_over_there_has_are_named(make_plan: Plans, changes: dict[str, Any], named: str):
    shape = replace(make_plan(model="tiny").model, **changes)
    with pytest.raises(ConfigError, match=named):
        hf_weights.to_hugging_face(GPT(shape, T).state_dict(), shape, T)


def write(folder: Path, model: ModelPlan, **config: Any) -> str:
    content, tensors = hf_weights.to_hugging_face(GPT(model, T).state_dict(), model, T)
    hf_weights.write_folder(folder, content | config, tensors)
    return f"hf:{folder}"


def test_larger_vocabulary_and_shorter_sequences_take_what_there_is(make_plan: Plans, tmp_path: Path):
    tiny = make_plan(model="tiny").model
    source = write(tmp_path, tiny)
    padded = make_plan(
        model=replace(tiny, vocab_size=320), card="cpu", trainer={"init_from": source}, sequence_length=8
    )
    drawn = build.build_model(replace(padded, trainer=replace(padded.trainer, init_from=None)))
    read = build.build_model(padded)
    given = hf_weights.read_folder(tmp_path, tiny)
    assert torch.equal(read.lm_head.weight[:256], given["lm_head.weight"])
    assert torch.equal(read.lm_head.weight[256:], drawn.lm_head.weight[256:])
    assert torch.equal(read.transformer["wpe"].weight, given["transformer.wpe.weight"][:8])


def test_weights_of_another_shape_are_named_with_both_shapes(make_plan: Plans, tmp_path: Path):
    tiny = make_plan(model="tiny").model
    source = write(tmp_path, tiny)
    other = make_plan(
        model=replace(tiny, n_layer=3, d_ff=96), card="cpu", trainer={"init_from": source}, sequence_length=T
    )
    with pytest.raises(ConfigError) as caught:
        build.build_model(other)
    assert "; and 6 more" in str(caught.value)  # the third block is missing
    assert "transformer.h.0.mlp.c_fc.weight is 128 x 32, the model has 96 x 32" in str(caught.value)


def test_scaled_rotary_angles_are_refused_by_name(make_plan: Plans, tmp_path: Path):
    rotary = {"norm": Norm.rmsnorm, "positions": Positions.rotary, "activation": Activation.swiglu}
    llama = replace(make_plan(model="tiny").model, family=Family.llama, **rotary)
    source = write(tmp_path, llama, rope_parameters={"rope_type": "llama3", "rope_theta": 5e5})
    with pytest.raises(ConfigError, match="angles are scaled \\(llama3\\)"):
        build.build_model(make_plan(model=llama, card="cpu", trainer={"init_from": source}, sequence_length=T))


def test_shards_of_a_large_model_are_read_by_their_index(make_plan: Plans, tmp_path: Path):
    tiny = make_plan(model="tiny").model
    source = write(tmp_path, tiny)
    whole = hf_weights.read_folder(tmp_path, tiny)
    split_in_two(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    for name, tensor in hf_weights.read_folder(Path(source.removeprefix("hf:")), tiny).items():
        assert torch.equal(tensor, whole[name])


def split_in_two(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name, place in weight_map.items() if place == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("content", [b"", b"\xff" * 5000, b"\x10\0\0\0\0\0\0\0{}"])
def test_weights_that_were_cut_short_are_refused(content: bytes, make_plan, tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(content)
    plan = make_plan(card="cpu", trainer={"init_from": f"hf:{tmp_path}"}, sequence_length=T)
    tiny = replace(plan.model, n_layer=1, n_head=1, n_kv_head=1, n_embd=16, d_ff=64, vocab_size=32)
    with pytest.raises(ConfigError, match="weights cannot be read"):
        build.build_model(replace(plan, model=tiny))
