import json
import os

import pytest
from resolving import config_of, problems_of, resolved

from conf.choices import Activation, Norm, Positions, Tokenizer
from launcher.decide import answer
from preflight.checks.extras import judge_start
from preflight.params import count_params
from preflight.tokenizer_file import ids_of
from preflight.verdict.judge import Severity

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
    for most, length in ((256, 256), (100, 96), (100_000, 1024), ("256", 1024), (None, 1024)):
        folder = _folder(tmp_path, CONFIGS["llama"] | {"max_position_embeddings": most})
        assert _from(folder).trainer.sequence_length == length


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
        (CONFIGS["llama"] | {"num_local_experts": 8}, "num_local_experts=8 (experts) is not modelled"),
        (CONFIGS["qwen3"] | {"moe_intermediate_size": 768}, "moe_intermediate_size=768 (experts) is not modelled"),
        (CONFIGS["llama"] | {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not modelled"),
        (CONFIGS["llama"] | {"tie_word_embeddings": "false"}, "tie_word_embeddings='false' is neither true nor false"),
        (CONFIGS["llama"] | {"rope_scaling": "yarn"}, "rope_scaling=yarn is no mapping"),
        (CONFIGS["mistral"] | {"sliding_window": 0.5}, "sliding_window=0.5 is no count"),
        (CONFIGS["gpt2"] | {"scale_attn_weights": False}, "scale_attn_weights=False is not modelled"),
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


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (CONFIGS["llama"], {}),
        (CONFIGS["llama"] | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, {"rope_scaling": "(llama3)"}),
        (CONFIGS["llama"] | {"rope_scaling": None, "rope_parameters": {"rope_type": "default"}}, {}),
        (CONFIGS["mistral"], {}),  # its usual window of 4096 is longer than the 1024 of the recipe
        (CONFIGS["mistral"] | {"sliding_window": 256}, {"sliding_window": "trainer.sequence_length=256"}),
        (CONFIGS["mistral"] | {"sliding_window": None}, {}),
        (CONFIGS["qwen2"] | {"sliding_window": 256}, {}),  # off without use_sliding_window
        (CONFIGS["qwen2"] | {"sliding_window": 256, "use_sliding_window": True}, {"sliding_window": "last 256"}),
        (CONFIGS["llama"] | {"quantization_config": {"quant_method": "gptq"}}, {"quantization_config": "(gptq)"}),
        (CONFIGS["llama"] | {"attention_dropout": 0.1}, {"attention_dropout": "0.1 of embeddings and residuals too"}),
        (CONFIGS["gpt2"] | {"attn_pdrop": 0.0}, {"attn_pdrop": "resid_pdrop's 0.1 instead of 0.0"}),
        (CONFIGS["llama"] | {"max_position_embeddings": 512}, {}),  # sequences are no longer then
        (CONFIGS["llama"] | {"architectures": ["LlamaForSequenceClassification"]}, {"architectures": "its own"}),
        (CONFIGS["llama"] | {"architectures": ["LlamaForCausalLM"], "auto_map": {"x": "y"}}, {"auto_map": "its own"}),
    ],
)
def test_what_is_billed_otherwise_is_named(content, told, tmp_path):
    origins = _from(_folder(tmp_path, content)).provenance
    notes = {path.removeprefix("model.path."): why for path, why in origins.items() if path.startswith("model.path.")}
    assert notes.keys() == told.keys()
    assert all(part in notes[name] for name, part in told.items()), notes


def test_longer_sequences_than_the_folder_is_made_for_are_told(tmp_path):
    folder = _folder(tmp_path, CONFIGS["llama"] | {"max_position_embeddings": 512})
    plan = _from(folder, "trainer.sequence_length=1024")
    assert "longer than the 512" in plan.provenance["model.path.max_position_embeddings"]


def test_weights_trained_with_what_is_not_computed_are_an_error_where_they_would_be_trained(tmp_path):
    folder = _folder(tmp_path, CONFIGS["mistral"])
    (folder / "model.safetensors").write_bytes(b"weights")
    plan = _from(
        folder, "trainer.sequence_length=8192", "trainer.tokens_per_step=524288", f"trainer.init_from=hf:{folder}"
    )
    (here,), (elsewhere,) = judge_start(plan, is_here=True), judge_start(plan, is_here=False)
    assert (here.severity, here.exit_code, elsewhere.severity) == (Severity.error, 2, Severity.warning)
    assert "has sliding_window: attention over the last 4,096 positions" in here.message


def test_text_is_read_with_the_tokenizer_beside_the_config(tmp_path):
    folder, novel = _folder(tmp_path, CONFIGS["llama"]), tmp_path / "novel.txt"
    novel.write_text("It was a dark and stormy night.\n" * 2000)
    asked = ("model=hf", f"model.path={folder}", "hw=8xh100", "data=text", f"data.path={novel}")
    assert "has a tokenizer of its own, which is not here" in problems_of(*asked)[0].message
    for n_ids, is_taken in ((300, True), (301, False)):  # the model has 300
        vocabulary = {f"t{i}": i for i in range(n_ids)}
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
        ids_of.cache_clear()
        if is_taken:
            plan = resolved(*asked)
            assert plan.data.tokenizer_path == str(folder / "tokenizer.json")
            assert plan.provenance["data.tokenizer"] == f"detected: {folder}/tokenizer.json"
        else:
            assert "which is not here" in problems_of(*asked)[0].message
    as_text = problems_of("model=hf", f"model.path={folder}", f"data.path={novel}")[0]
    assert (as_text.path, as_text.fix) == ("data.path", f"data=text data.path={novel}")


def test_recipe_of_a_folder_has_smaller_steps_on_a_processor(tmp_path):
    folder = ("model=hf", f"model.path={_folder(tmp_path, CONFIGS['llama'])}")
    plan = resolved(*folder, "hw=cpu")
    assert plan.trainer.tokens_per_step == 16_384
    assert "for a processor" in plan.provenance["model.recipe.tokens_per_step"]
    assert resolved(*folder, "hw=cpu", "trainer.tokens_per_step=491520").trainer.tokens_per_step == 491_520
    assert resolved(*folder, "hw=8xh100").trainer.tokens_per_step == 491_520
    assert resolved(*folder, "hw=cpu", "trainer.sequence_length=1536").trainer.tokens_per_step == 491_520
