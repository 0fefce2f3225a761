from pathlib import Path

import pytest
from resolving import resolved

from conf.choices import Family
from conf.register import options
from preflight.params import count_params
from preflight.resolve import presets
from preflight.resolve.presets import default_d_ff, preset_names

# name -> parameters as published; GPT-2's have biases and an unpadded vocabulary
PUBLISHED = {
    "gpt2_124m": 124_439_808,
    "gpt2_350m": 354_823_168,
    "gpt2_774m": 774_030_080,
    "gpt2_1558m": 1_557_611_200,
    "llama_125m": 124_635_456,  # MobileLLM-125M
    "llama_1b": 1_100_048_384,  # TinyLlama-1.1B
    "llama_7b": 6_738_415_616,
    "llama_13b": 13_015_864_320,
    "llama_70b": 68_976_648_192,
}


@pytest.mark.parametrize(("name", "n_params"), PUBLISHED.items())
def test_preset_has_the_published_number_of_parameters(name, n_params):
    as_published = ["model.bias=true", "model.vocab_size=50257"] if name.startswith("gpt2") else []
    plan = resolved(f"model={name}", "hw=8xh100", *as_published)
    assert count_params(plan.model, plan.trainer.sequence_length).total == n_params


@pytest.mark.parametrize(
    ("family", "n_embd", "d_ff"), [("llama", 4096, 11008), ("llama", 5120, 13824), ("gpt2", 768, 3072)]
)
def test_default_width_of_the_mlp_is_the_papers(family, n_embd, d_ff):
    assert default_d_ff(Family[family], n_embd) == d_ff


def test_smaller_models_are_of_the_family_and_tokenizer_largest_first():
    names = [model.name for model in resolved("model=gpt2_1558m", "hw=8xh100").lowering.smaller_models]
    assert names == ["gpt2_774m", "gpt2_350m", "gpt2_124m"]
    assert [model.name for model in resolved("model=llama_7b", "hw=8xh100").lowering.smaller_models] == [
        "llama_3b",
        "llama_1b",
        "llama_125m",
    ]
    assert [model.name for model in resolved("model=gpt2_10m").lowering.smaller_models] == ["tiny"]
    assert resolved("model=tiny").lowering.smaller_models == ()


def test_smaller_models_keep_vocabulary_bias_and_dropout():
    plan = resolved("model=gpt2_350m", "hw=4090", "model.vocab_size=50257", "model.bias=true", "model.dropout=0.2")
    (smaller,) = plan.lowering.smaller_models
    assert (smaller.vocab_size, smaller.bias, smaller.dropout) == (50257, True, 0.2)


def test_shape_that_is_not_its_names_is_told():
    origin = resolved("model=tiny", "model.n_layer=2").provenance["model"]
    assert origin == "given: n_layer is 2, tiny has 4"
    assert "model" not in resolved("model=tiny", "model.n_layer=2", "model.name=mine").provenance
    assert "model" not in resolved("model=tiny", "model.dropout=0.1").provenance


def test_preset_names_are_the_choices_of_the_model_group():
    assert set(preset_names()) == set(options("model"))


def _models_in(folder: Path, **files: str) -> Path:
    for name in ("tiny", "gpt2_124m"):
        (folder / f"{name}.yaml").write_text((presets.MODEL_DIR / f"{name}.yaml").read_text())
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def test_presets_follow_their_defaults_lists(tmp_path, monkeypatch):
    half = "defaults:\n  - gpt2_124m\n  - _self_\nname: half\nn_layer: 6\n"
    quarter = "defaults:\n  - half\nname: quarter\nn_layer: 3\n"
    shadowed = "defaults:\n  - _self_\n  - half\nname: shadowed\nn_layer: 99\n"  # what comes later counts
    folder = _models_in(tmp_path, half=half, quarter=quarter, shadowed=shadowed)
    monkeypatch.setattr(presets, "MODEL_DIR", folder)
    plan = resolved("model=gpt2_124m", "hw=4090")
    assert [(model.name, model.n_layer) for model in plan.lowering.smaller_models] == [
        ("half", 6),
        ("half", 6),
        ("quarter", 3),
    ]
    assert "lowering.allow_model" not in plan.provenance


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a: [1\nb: {", "expected ','"),
        ("5", "no mapping of options"),
        ("", "no mapping of options"),
        ("defaults: [mine]\n", "lead back to mine"),
        ("defaults: [nowhere]\n", "No such file"),
        ("defaults: [{override x: y}]\n", "no list of names"),
        ("name: mine\n", "no family"),
        ("defaults: [tiny]\nn_layer: many\n", "n_layer is many"),
        ("defaults: [tiny]\nn_head: 0\n", "n_head is 0"),
        ("defaults: [tiny]\nlayers: 3\n", "layers"),
    ],
)
def test_preset_that_cannot_be_read_stops_nobody_and_is_told(tmp_path, monkeypatch, text, cause):
    monkeypatch.setattr(presets, "MODEL_DIR", _models_in(tmp_path, mine=text))
    note = resolved("model=tiny").provenance["lowering.allow_model"]
    assert note.startswith("default: no smaller model is taken from conf/model/mine.yaml (")
    assert cause in note


def test_folders_and_dangling_links_are_no_presets(tmp_path, monkeypatch):
    folder = _models_in(tmp_path)
    (folder / "folder.yaml").mkdir()
    (folder / "dangling.yaml").symlink_to("/nowhere/else.yaml")
    monkeypatch.setattr(presets, "MODEL_DIR", folder)
    assert "lowering.allow_model" not in resolved("model=tiny").provenance
