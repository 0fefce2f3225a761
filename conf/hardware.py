"""How is `hw=2x8xh100` read? Names are made from numbers and the card catalog, so any count works without a file."""

from __future__ import annotations

from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import OmegaConf

from preflight.resolve.hw_names import parse_hw

GROUP = "hw"
SCHEMA_NAME = "schema"


class HardwareSource(ConfigSource):
    """Answers every `hw/<name>`; whether the card exists is judged when the plan is resolved."""

    @staticmethod
    def scheme() -> str:
        """Its name on Hydra's search path."""
        return "hardware"

    def load_config(self, config_path: str) -> ConfigResult:
        """The same content that a YAML file of this name would have."""
        if not self.is_config(config_path):
            raise ConfigLoadError(f"Config not found : {config_path}")
        name = config_path.removeprefix(f"{GROUP}/")
        content = {"defaults": [SCHEMA_NAME, "_self_"], **parse_hw(name)}
        return ConfigResult(
            provider=self.provider,
            path=f"{self.scheme()}://{config_path}",
            config=OmegaConf.create(content),
            header={"package": GROUP},
        )

    def is_group(self, config_path: str) -> bool:
        """Only `hw` is ours."""
        return config_path.rstrip("/") == GROUP

    def is_config(self, config_path: str) -> bool:
        """Any name but the schema's."""
        group, _, name = config_path.partition("/")
        return group == GROUP and bool(name) and name.removesuffix(".yaml") != SCHEMA_NAME

    def available(self) -> bool:
        """Nothing on disk can be missing."""
        return True

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """What can be listed of an endless group: the names that are not cards."""
        return ["auto", "cpu", "custom"] if self.is_group(config_path) and results_filter != ObjectType.GROUP else []
