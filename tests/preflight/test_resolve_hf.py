import json
import os

import pytest
from resolving import config_of, problems_of, resolved

from conf.choices import Activation, Norm, Positions, Tokenizer
from launcher.decide import answer
from preflight.params import count_params

CONFIGS = {
    "gpt2": {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 300, "n_positions": 128},
    "llama": {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 160, "vocab_size": 300,
    },
    "mistral": {
        "model_type": "mistral", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 160, "vocab_size": 300, "head_dim": 32,
    },
    "qwen2": {
        "model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 160, "vocab_size": 300, "tie_word_embeddings": True,
    },
    "qwen3": {
        "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 160, "vocab_size": 300, "head_dim": 32,
    },
}  # fmt: skip


def _folder(tmp_path, content):
    folder = tmp_path / "my_model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def _from(folder, *overrides):
    return resolved("model=hf", f"model.path={folder}", "hw=8xh100", *overrides)


@pytest.mark.parametrize("name", CONFIGS)
def test_folder_has_as_many_parameters_as_accelerates_empty_weights(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    accelerate = pytest.importorskip("accelerate")
    folder = _folder(tmp_path, CONFIGS[name])
    config = transformers.AutoConfig.from_pretrained(folder)
    with accelerate.init_empty_weights():
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    plan = _from(folder)
    assert count_params(plan.model, plan.trainer.sequence_length).total == sum(p.numel() for p in model.parameters())


def test_folder_of_gpt2_is_gpt2(tmp_path):
    plan = _from(_folder(tmp_path, {"model_type": "gpt2"}))  # save_pretrained leaves out nothing, people do
    assert count_params(plan.model, plan.trainer.sequence_length).total == 124_439_808
    assert (plan.name, plan.model.tokenizer, plan.model.dropout) == ("my_model", Tokenizer.gpt2, 0.1)
    assert plan.provenance["model"] == f"detected: gpt2 of {tmp_path}/my_model/config.json"


def test_folder_of_qwen3_says_what_its_block_is(tmp_path):
    model = _from(_folder(tmp_path, CONFIGS["qwen3"])).model
    assert (model.norm, model.positions, model.activation) == (Norm.rmsnorm, Positions.rotary, Activation.swiglu)
    assert (model.qk_norm, model.head_dim, model.n_kv_head, model.tied_head) == (True, 32, 2, False)


def test_config_json_itself_may_be_named(tmp_path):
    folder = _folder(tmp_path, CONFIGS["llama"])
    plan = resolved("model=hf", f"model.path={folder}/config.json", "hw=8xh100")
    assert (plan.model.path, plan.name) == (str(folder), folder.name)
    assert plan.provenance["model"] == f"detected: llama of {folder}/config.json"


def test_sequences_are_no_longer_than_the_table_of_positions(tmp_path):
    folder = _folder(tmp_path, CONFIGS["gpt2"])
    assert _from(folder).trainer.sequence_length == 128


def test_given_numbers_count_more_than_the_folders(tmp_path):
    plan = _from(_folder(tmp_path, CONFIGS["llama"]), "model.n_layer=7", "model.d_ff=96", "model.name=mine")
    assert (plan.model.n_layer, plan.model.d_ff, plan.model.n_embd, plan.name) == (7, 96, 64, "mine")


def test_folders_model_has_no_smaller_one(tmp_path):
    assert _from(_folder(tmp_path, CONFIGS["llama"])).lowering.smaller_models == ()


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ({"model_type": "mixtral"}, "architecture mixtral is not modelled; modelled are gpt2, llama"),
        ({"architectures": ["X"]}, "architecture unknown is not modelled"),
        ({"model_type": "llama"}, "lacks num_attention_heads"),
        (CONFIGS["llama"] | {"hidden_act": "gelu"}, "hidden_act=gelu is not modelled"),
        (CONFIGS["llama"] | {"mlp_bias": True}, "mlp_bias=True is not modelled"),
        (CONFIGS["llama"] | {"vocab_size": "many"}, "vocab_size=many is no count"),
        (CONFIGS["gpt2"] | {"activation_function": "tanh"}, "activation_function=tanh is not modelled"),
        ("{", "is no JSON"),
        ("[]", "holds no mapping"),
        ('{"vocab_size": ' + "9" * 5000 + "}", "is no JSON"),  # more digits than Python reads
        (CONFIGS["llama"] | {"rms_norm_eps": 10**400}, "is not understood: int too large"),
        (CONFIGS["llama"] | {"rope_parameters": "yarn"}, "rope_parameters=yarn is no mapping"),
        (CONFIGS["gpt2"] | {"activation_function": []}, "activation_function=[] is not modelled"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(content, part, tmp_path):
    folder = _folder(tmp_path, content)
    (problem,) = problems_of("model=hf", f"model.path={folder}", "hw=8xh100")
    assert problem.path == "model.path"
    assert part in problem.message


def test_pipe_in_place_of_config_json_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    for path in (tmp_path, tmp_path / "config.json"):
        (problem,) = problems_of("model=hf", f"model.path={path}", "hw=8xh100")
        assert "is no file" in problem.message


def test_missing_folder_and_other_faults_are_told_together(tmp_path):
    found = problems_of("model=hf", f"model.path={tmp_path}/none", "hw=8xh100", "trainer.n_steps=0")
    assert [problem.path for problem in found] == ["model.path", "trainer.n_steps"]
    assert "there is no" in found[0].message


def test_model_hf_without_a_folder_asks_for_one():
    assert [(problem.path, problem.fix) for problem in problems_of("model=hf", "hw=8xh100")] == [
        ("model.path", "model.path=DIR")
    ]


def test_presets_do_not_look_for_a_folder():
    assert config_of("model=tiny").model.path is None
    assert resolved("model=tiny").model.path is None


def test_name_that_no_folder_can_have_is_refused_beside_other_faults(capsys):
    assert answer(["model=hf", f"model.path={'a' * 400}", "trainer.precision=7", "dry_run=true"]).exit_code == 2
    told = capsys.readouterr().err
    assert "File name too long" in told
    assert "trainer.precision=7" in told


def test_second_look_that_fails_leaves_the_first_faults(monkeypatch, capsys):
    monkeypatch.setattr("launcher.decide.planned", lambda *_: 1 / 0)
    assert answer(["trainer.precision=7", "dry_run=true"]).exit_code == 2
    assert "trainer.precision=7" in capsys.readouterr().err


def test_vocabulary_of_256_is_bytes(tmp_path):
    assert _from(_folder(tmp_path, CONFIGS["gpt2"] | {"vocab_size": 256})).model.tokenizer is Tokenizer.byte
