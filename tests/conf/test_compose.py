import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from conf import register
from conf.choices import DataKind, Family, PrecisionChoice, TrackingBackend
from conf.compose import compose
from conf.schema import Config
from preflight.errors import ConfigError


def config_of(*overrides: str) -> Config:
    config = compose(overrides).config
    assert config is not None
    return config


def test_compose_gives_plain_objects_without_overrides():
    config = config_of()
    assert (config.model.name, config.model.family) == ("tiny", Family.gpt2)
    assert (config.hw.card, config.data.kind, config.tracking.backend) == ("auto", DataKind.auto, TrackingBackend.wandb)
    assert config.budget.max_hours == 24


def test_compose_reads_groups_and_values():
    config = config_of("model=gpt2_124m", "hw=2x8xh100", "trainer.precision=bf16", "tracking=none", "dry_run=true")
    assert (config.model.n_layer, config.model.vocab_size) == (12, 50304)
    assert (config.hw.card, config.hw.n_nodes, config.hw.n_gpus_per_node) == ("h100", 2, 8)
    assert config.trainer.precision is PrecisionChoice.bf16
    assert config.tracking.backend is TrackingBackend.none
    assert config.dry_run is True


def test_compose_takes_whole_floats_as_counts():
    assert config_of("trainer.total_tokens=1e9").trainer.total_tokens == 10**9


def test_compose_reads_a_card_that_is_a_number_as_a_name():
    assert config_of("hw=4090").hw.card == "4090"


def test_compose_lets_an_override_win_over_an_experiment():
    config = config_of("experiment=nanogpt_600k", "hw=1x4090", "trainer.n_steps=10")
    assert (config.hw.card, config.trainer.n_steps, config.budget.max_hours) == ("4090", 10, 120)


def test_compose_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compose(["model=gpt2_124m", "hw=4x4090"])
    compose(["-m", "seed=1,2"])
    assert list(tmp_path.iterdir()) == []


def test_compose_spreads_a_grid_with_the_last_value_fastest():
    request = compose(["-m", "model=gpt2_124m,gpt2_350m", "hw=1x4090,8xh100", "dry_run=true"])
    assert request.config is None
    assert [row.varying for row in request.grid] == [
        ("model=gpt2_124m", "hw=1x4090"),
        ("model=gpt2_124m", "hw=8xh100"),
        ("model=gpt2_350m", "hw=1x4090"),
        ("model=gpt2_350m", "hw=8xh100"),
    ]
    assert all(row.config.dry_run for row in request.grid)
    assert request.grid[3].config.hw.n_gpus_per_node == 8


def test_compose_makes_a_grid_of_one_row_when_nothing_varies():
    request = compose(["-m", "hw=4x4090"])
    assert [row.varying for row in request.grid] == [()]
    assert request.notes == ("-m, but nothing is listed as in hw=1x4090,8xh100: this is a single run",)


@pytest.mark.parametrize(
    ("override", "message"),
    [("hw=glob(*)", "no patterns"), ("model=glob(zz*)", "nothing matches; there are gpt2_10m"),
     ("seed=range(1,1)", "there is no value in it")],
)  # fmt: skip
def test_compose_refuses_a_grid_without_rows(override, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        compose(["-m", "dry_run=true", override])


@pytest.mark.parametrize(
    ("override", "n_rows"),
    [("seed=range(1,4)", 3), ("model=glob(gpt2_*)", 5), ("hw=3090,4090", 2), ("model=choice(tiny,gpt2_10m)", 2)],
)
def test_compose_spreads_ranges_globs_and_choices(override, n_rows):
    assert len(compose([override, "--multirun"]).grid) == n_rows


def test_compose_refuses_a_grid_without_end():
    with pytest.raises(ConfigError, match="more than 1,000 rows"):
        compose(["-m", "seed=range(0,1000000000)", "model=tiny,gpt2_10m"])


def test_compose_tells_every_fault_of_a_grid():
    with pytest.raises(ConfigError) as caught:
        compose(["-m", "model=tiny,huge", "trainer.n_steps=5,x"])
    assert [(problem.path, problem.value) for problem in caught.value.problems] == [
        ("model", "huge"),
        ("trainer.n_steps", "x"),
    ]


def test_compose_prints_the_configuration_that_it_would_return():
    text = compose(["--cfg", "job", "model=gpt2_124m"]).text
    assert text is not None
    assert OmegaConf.to_object(OmegaConf.merge(Config, OmegaConf.create(text))) == config_of("model=gpt2_124m")


def test_compose_prints_help_whatever_else_is_wrong():
    text = compose(["--help", "nonsense=1"]).text
    assert text is not None
    assert "hw=4x4090" in text


def test_compose_ignores_the_flag_of_old_launchers_and_says_so():
    request = compose(["--local-rank=0", "model=tiny"])
    assert request.overrides == ("model=tiny",)
    assert "--local-rank=0" in request.notes[0]


def test_compose_refuses_other_kinds_of_cfg():
    with pytest.raises(ConfigError, match="--cfg job"):
        compose(["--cfg", "hydra"])


def test_compose_explains_an_interpolation_that_leads_nowhere():
    assert config_of("name=${model.name}").name == "tiny"
    with pytest.raises(ConfigError, match=r"foo\.bar"):
        compose(["name=${foo.bar}"])


def test_compose_does_not_share_state_between_calls():
    first = config_of("model=gpt2_124m", "hw=4x4090")
    assert config_of() == replace(config_of())
    assert config_of("model=gpt2_124m", "hw=4x4090") == first


@pytest.fixture
def conf_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of conf/ that may be broken."""
    folder = tmp_path / "conf"
    shutil.copytree(register.CONF_DIR, folder, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    monkeypatch.setattr(register, "CONF_DIR", folder)
    for cached in (register.register, register.options):
        cached.cache_clear()
    yield folder
    for cached in (register.register, register.options):
        cached.cache_clear()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: {", "model/mine.yaml line 2 cannot be read: expected ',' or ']'"),
        ("name: mine\nname: yours\n", "model/mine.yaml line 2 cannot be read: found duplicate key name"),
        ("5", "model/mine.yaml cannot be read: Invalid loaded object type: int"),
        ("defaults: [tiny]\nn_layer: x\n", "In 'model/mine': ValidationError raised while composing config: Value 'x'"),
        ("defaults: [mine]\n", "lead back to themselves"),
    ],
)
def test_compose_names_the_file_the_line_and_the_cause(conf_dir, text, message):
    (conf_dir / "model" / "mine.yaml").write_text(text)
    assert config_of("model=tiny").model.name == "tiny"
    with pytest.raises(ConfigError) as caught:
        compose(["model=mine"])
    (problem,) = caught.value.problems
    assert message in problem.message


def test_compose_names_a_broken_config_yaml(conf_dir):
    (conf_dir / "config.yaml").write_text("defaults:\n  - schema\n  - model: [\n")
    with pytest.raises(ConfigError, match=r"config\.yaml line \d+ cannot be read"):
        compose([])
    (conf_dir / "config.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"config\.yaml cannot be read"):
        compose([])
    (conf_dir / "config.yaml").unlink()
    with pytest.raises(ConfigError, match="config"):
        compose([])


@pytest.mark.parametrize("key", ["trainer.grad_clip", "hw.watts"])
def test_number_that_no_float_holds_is_refused(key):
    with pytest.raises(ConfigError) as refused:
        compose([f"{key}={'9' * 400}"])
    (problem,) = refused.value.problems
    assert (problem.path, problem.fix.partition("=")[0]) == (key, key)


@pytest.mark.parametrize("key", ["lowering.keep", "lowering.rungs", "tracking.tags", "compare.providers"])
def test_list_that_is_null_is_offered_empty(key):
    with pytest.raises(ConfigError) as refused:
        compose([f"{key}=null"])
    (problem,) = refused.value.problems
    assert problem.fix == f"'{key}=[]'"
    assert compose([f"{key}=[]"]).config is not None
