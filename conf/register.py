"""Where does Hydra find the configuration? Schemas in `conf.schema`, choices in the YAML beside it, `hw` from names.

Hydra's own `hydra:` node (job folders, logging, sweepers) is not composed: this program writes its own run folders, and
leaving it out saves a third of the start-up time. What is used is Hydra's defaults list and merge, unchanged;
tests/conf/test_register.py holds the result against Hydra's full composition.
"""

from __future__ import annotations

import os
import re
from copy import deepcopy
from functools import cache
from pathlib import Path

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, IConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.structured_config_source import StructuredConfigSource
from hydra._internal.defaults_list import create_defaults_list
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf
from yaml import MarkedYAMLError, YAMLError  # type: ignore[import-untyped]

from conf import schema
from conf.hardware import SCHEMA_NAME, HardwareSource
from preflight.errors import ConfigError, Problem

CONF_DIR = Path(__file__).parent
CONFIG_NAME = "config"
GROUPS = {
    "model": schema.ModelConfig,
    "data": schema.DataConfig,
    "hw": schema.HwConfig,
    "trainer": schema.TrainerConfig,
    "budget": schema.BudgetConfig,
    "lowering": schema.LoweringConfig,
    "launcher": schema.LauncherConfig,
    "tracking": schema.TrackingConfig,
    "experiment": None,  # overlays over the whole configuration
}


@cache
def register() -> ConfigLoaderImpl:
    """Once a process: the schemas, the sources, the search path."""
    version.setbase("1.3")
    store = ConfigStore.instance()
    store.store(name=SCHEMA_NAME, node=schema.Config)
    for group, node in GROUPS.items():
        if node is not None:
            store.store(group=group, name=SCHEMA_NAME, node=node)
    for source in (YamlSource, StructuredConfigSource, HardwareSource):
        SourcesRegistry.instance().register(source)
    return ConfigLoaderImpl(search_path())


def search_path() -> ConfigSearchPath:
    """The YAML first, then names of hardware, then the schemas, which Hydra wants last."""
    path = ConfigSearchPathImpl()
    path.append("main", f"{YamlSource.scheme()}://{CONF_DIR}")
    path.append("catalog", f"{HardwareSource.scheme()}://")
    path.append("schema", f"{StructuredConfigSource.scheme()}://")
    return path


@cache
def options(group: str) -> list[str]:
    """The choices of a group that can be listed."""
    names = [name for name in register().repository.get_group_options(group) if name != SCHEMA_NAME]
    return sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


class YamlSource(FileConfigSource):
    """Hydra's, with a word on which file cannot be read, and where."""

    @staticmethod
    def scheme() -> str:
        """Its name on Hydra's search path, where `file` is Hydra's own."""
        return "yaml"

    def load_config(self, config_path: str) -> ConfigResult:
        """ConfigError for what is no YAML, no UTF-8 or no mapping of options."""
        try:
            return super().load_config(config_path)
        except HydraException:
            raise
        except (YAMLError, OSError, ValueError) as error:
            path = os.path.join(self.path, self._normalize_file_name(config_path))
            raise ConfigError([_file_problem(path, error)]) from error


def _file_problem(path: str, error: Exception) -> Problem:
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    place = path if mark is None else f"{path} line {mark.line + 1}"
    cause = getattr(error, "problem", None) or getattr(error, "reason", None) or " ".join(str(error).split())
    return Problem(path="", value="", message=f"{place} cannot be read: {cause}", fix=f"correct {path}")


class _Repository(CachingConfigRepository):
    """Hydra's copies the sources with every schema in them, in case a search path is added; none is here."""

    def __init__(self, delegate: IConfigRepository) -> None:
        self.delegate = delegate
        self.cache: dict[str, ConfigResult | None] = {}


Chosen = dict[tuple[str, ...], DictConfig]  # choices of groups, as typed -> their composition


def merge(overrides: list[Override], chosen: Chosen | None = None) -> DictConfig:
    """Hydra's composition of config.yaml and these overrides, in struct mode.

    Most of the time goes into reading and merging the files that groups choose; callers that compose often share
    `chosen`, where those of before are kept. Files that change meanwhile are not read again.
    """
    choices, values = _apart(overrides)
    if chosen is None:
        config = _composed(choices)
    else:
        key = tuple(str(override.input_line) for override in choices)
        if key not in chosen:
            chosen[key] = _composed(choices)
        config = deepcopy(chosen[key])
    ConfigLoaderImpl._apply_overrides_to_config(values, config)
    return config


def _apart(overrides: list[Override]) -> tuple[list[Override], list[Override]]:
    """Choices of groups, which alone decide the defaults list, and values; as Hydra tells them apart."""
    choices: list[Override] = []
    values: list[Override] = []
    exists = register().repository.group_exists
    for override in overrides:
        if not override.is_sweep_override():  # of a grid that is only shown
            is_choice = exists(override.key_or_group) and not isinstance(override.value(), dict)
            (choices if is_choice else values).append(override)
    return choices, values


def _composed(choices: list[Override]) -> DictConfig:
    loader = register()
    repository = _Repository(loader.repository)
    defaults = create_defaults_list(
        repo=repository,
        config_name=CONFIG_NAME,
        overrides_list=choices,
        prepend_hydra=False,
        skip_missing=False,
    )
    config = loader._compose_config_from_defaults_list(defaults=defaults.defaults, repo=repository)
    OmegaConf.set_struct(config, True)
    return config
