"""What does every option of a group do? `python launch.py --help budget` shows the comments of conf/schema.py."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import cache
from itertools import groupby
from textwrap import fill

from conf import names, schema
from conf.help import WIDTH, takes
from preflight.errors import Problem

EVERYTHING = "all"
COLUMN = 36  # where the words begin
_CLASS = re.compile(r"class (\w+):")
_FIELD = re.compile(r"    (\w+): [^#]*?(?:  # (.*))?")
_ABOVE = re.compile(r"    # (.*)")


def topics_in(words: Sequence[str]) -> list[str]:
    """Those of the words that name a group, an option, or everything."""
    topics = [word.removesuffix("=") for word in words]  # `budget=` is what Tab offers
    return [topic for topic in topics if topic == EVERYTHING or _paths(topic)]


def unknown_topics(words: Sequence[str]) -> list[Problem]:
    """Words that can only be meant as a topic: whoever adds --help to a command sees the main page, whatever it has."""
    topics = [word.removesuffix("=") for word in words if word[:1].isalpha() and "=" not in word[:-1]]
    groups = sorted({path.partition(".")[0] for path in names.all_options() if "." in path})
    message = f"no such group; there are {', '.join(groups)}, and {EVERYTHING}"
    return [
        Problem(path="", value="", message=f"--help {topic}: {message}", fix=f"--help {likely}".rstrip())
        for topic in topics
        if not topics_in([topic])
        for likely in [*names.nearest(topic, [*groups, *names.all_options()], n=1, cutoff=0.75), ""][:1]
    ]


def topic_page(topics: Sequence[str]) -> str:
    """Every option of these groups: its name, what it is for, what it takes and its default."""
    paths = dict.fromkeys(path for topic in topics for path in _paths(topic))
    lines = []
    for kind, group in groupby(paths, key=_owner):
        lines += [fill(_null(kind.__doc__ or ""), width=WIDTH), *map(_entry, group)]
    return "\n".join(lines) + "\n"


def _paths(topic: str) -> list[str]:
    return [path for path in names.all_options() if topic in (path, EVERYTHING) or path.startswith(f"{topic}.")]


def _entry(path: str) -> str:
    what = _comments()[_owner(path).__name__].get(path.rpartition(".")[2], "")
    text = f"{what}: {takes(path)}" if what else takes(path)
    head = f"  {path}"
    lines = fill(text, width=WIDTH, initial_indent=" " * COLUMN, subsequent_indent=" " * COLUMN)
    return head.ljust(COLUMN) + lines[COLUMN:] if len(head) < COLUMN else f"{head}\n{lines}"


def _owner(path: str) -> type:
    """The dataclass that has the option."""
    parent, _, _ = path.rpartition(".")
    kind = names.without_none(names.hint_of(parent))[0] if parent else schema.Config
    assert is_dataclass(kind)
    assert isinstance(kind, type)
    return kind


@cache
def _comments() -> dict[str, dict[str, str]]:
    """By dataclass and field: the comment behind it, after the one above it."""
    found: dict[str, dict[str, str]] = {}
    kind, above = "", ""
    for line in inspect.getsource(schema).splitlines():
        if named := _CLASS.match(line):
            kind = named[1]
        elif (field := _FIELD.fullmatch(line)) and kind:
            found.setdefault(kind, {})[field[1]] = _null(" ".join(filter(None, (above, field[2]))))
        comment = _ABOVE.fullmatch(line)
        above = f"{above} {comment[1]}".strip() if comment else ""
    return found


def _null(words: str) -> str:
    """As it is typed."""
    return re.sub(r"\bNone\b", "null", words)
