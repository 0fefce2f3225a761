from pathlib import Path

import pytest
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from omegaconf import OmegaConf, open_dict

from conf.register import CONF_DIR, CONFIG_NAME, GROUPS, Chosen, merge, options, register, search_path

YAML_FILES = sorted(CONF_DIR.rglob("*.yaml"))
GROUP_FILES = [path for path in YAML_FILES if path.parent.name in GROUPS]


@pytest.mark.parametrize(
    "overrides",
    [[], ["model=gpt2_124m", "hw=2x8xh100", "dry_run=true"], ["experiment=nanogpt_600k", "trainer.n_steps=5"]],
    ids=["default", "overrides", "experiment"],
)
def test_merge_equals_the_full_composition_of_hydra(overrides):
    register()
    Plugins.instance()  # Hydra's own configuration comes from its package
    path = search_path()
    path.prepend("hydra", "pkg://hydra.conf")
    full = ConfigLoaderImpl(path).load_configuration(CONFIG_NAME, overrides, run_mode=RunMode.RUN, from_shell=False)
    with open_dict(full):
        del full["hydra"]
    parsed = OverridesParser.create().parse_overrides(overrides)
    chosen: Chosen = {}
    for ours in (merge(parsed), merge(parsed, chosen), merge(parsed, chosen)):
        assert OmegaConf.to_object(ours) == OmegaConf.to_object(full)
        assert list(ours) == list(full)
    assert len(chosen) == 1


def test_merge_keeps_what_was_chosen_apart_from_the_values():
    chosen: Chosen = {}
    parse = OverridesParser.create().parse_overrides
    first = merge(parse(["model=gpt2_124m", "trainer.n_steps=5", "model.n_layer=3"]), chosen)
    again = merge(parse(["model=gpt2_124m", "trainer={n_steps:6}"]), chosen)
    other = merge(parse(["model=tiny"]), chosen)
    assert (first.trainer.n_steps, first.model.n_layer, again.trainer.n_steps, again.model.n_layer) == (5, 3, 6, 12)
    assert other.model.name == "tiny"
    assert list(chosen) == [("model=gpt2_124m",), ("model=tiny",)]


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_yaml_lists_its_schema_first_and_itself_last(path):
    defaults = yaml.safe_load(path.read_text())["defaults"]
    assert defaults[-1] == "_self_"
    if path.parent.name != "experiment":
        assert defaults[0] == "schema"
    else:
        assert path.read_text().startswith("# @package _global_\n")
        assert all(next(iter(default)).startswith("override /") for default in defaults[:-1])


def test_every_group_is_chosen_in_config_yaml_in_the_order_of_the_schemas():
    defaults = yaml.safe_load((CONF_DIR / "config.yaml").read_text())["defaults"]
    assert [next(iter(default)) for default in defaults[1:-1]] == list(GROUPS)


@pytest.mark.parametrize("path", GROUP_FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_choice_composes(path):
    config = merge(OverridesParser.create().parse_overrides([f"{path.parent.name}={path.stem}"]))
    OmegaConf.to_object(config)
    if path.parent.name == "model":
        assert config.model.name == path.stem


def test_options_are_the_yaml_files_in_natural_order():
    assert options("model")[:5] == ["gpt2_10m", "gpt2_124m", "gpt2_350m", "gpt2_774m", "gpt2_1558m"]
    assert set(options("data")) == {path.stem for path in Path(CONF_DIR, "data").glob("*.yaml")}
