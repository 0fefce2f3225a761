"""What is noted while a plan is resolved: every problem, and where every value came from.

`provenance` maps a config path to `given`, `recipe`, `default` or `detected`; when the launcher decided something that
the user should hear of, a colon and the reason follow: `recipe: 10 instead of 12, the largest that divides`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from conf.schema import Config
from preflight.errors import Problem

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Resolution:
    """Filled by the `resolve_*` modules, one after the other."""

    problems: list[Problem] = field(default_factory=list)
    provenance: dict[str, str] = field(default_factory=dict)

    def refuse(self, path: str, value: Any, message: str, fix: str) -> None:
        """One more problem; the resolving goes on, so that all of them are told."""
        self.problems.append(Problem(path=path, value=show(value), message=message, fix=fix))

    def is_sound(self, *paths: str) -> bool:
        """False when one of the paths has been refused already: what depends on it is not judged."""
        return not any(problem.path in paths for problem in self.problems)

    def choose(self, path: str, given: T | None, fallback: T, origin: str) -> T:
        """What was given, else the fallback, and a note of which it was."""
        self.provenance[path] = origin if given is None else "given"
        return fallback if given is None else given


def show(value: Any) -> str:
    """As it would be typed."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(getattr(value, "name", value))


def value_at(config: Config, path: str) -> Any:
    """The value at a dotted path."""
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def with_value(config: T, path: str, value: Any) -> T:
    """A copy of a configuration, or of a part of it, with another value at a dotted path."""
    head, _, rest = path.partition(".")
    inner: Any = with_value(getattr(config, head), rest, value) if rest else value
    copy: Any = replace(config, **{head: inner})  # type: ignore[type-var]
    return copy  # type: ignore[no-any-return]
