"""Which override was meant, and how is it typed in a shell? Only mistakes come here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from conf import names
from conf.amounts import SHORT, count, takes, understood
from conf.choices import Action
from conf.hardware import GROUP as HW
from conf.register import GROUPS, options
from preflight.errors import Problem
from preflight.resolve.hw_names import is_same_machine, likely_hw, parse_hw, similar_cards
from preflight.resolve.ranges import RANGES

_DECIMAL_COMMA = re.compile(r"\d+,\d+")
_WITH_UNIT = re.compile(r"\d+,\d+\s*[a-z$%]+", re.IGNORECASE)
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(,\d{3})+")
_NUMBER_FIRST = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)
_SHELL = re.compile(r"[\s'\"$&|;<>(){}*?!#\\\[\]]")
_YES = ("true", "yes", "y", "on", "t", "1")
_NO = ("false", "no", "n", "off", "f", "0", "none")
_VERBS = ("train", "run", "start", "launch")  # what happens anyway


def assignment(key: str, value: str) -> str:
    """KEY=VALUE, in quotes where the shell would take it apart."""
    return shlex.quote(f"{key}={value}") if _SHELL.search(value) else f"{key}={value}"


def as_typed(key: str, value: str) -> str:
    """The same for a value that is sound as such, but may be half a machine: `hw=4`."""
    return assignment(key, (likely_hw(value) or value) if key == HW else value)


def quoted(key: str, text: str) -> str:
    """The override that passes `text` literally, as typed in a shell."""
    return shlex.quote(f"{key}={literal(text)}")


def literal(text: str) -> str:
    """In the double quotes of Hydra's grammar, which reads a backslash as itself unless a quote follows."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"') if '"' in text or text.endswith("\\") else text
    return f'"{escaped}"'


def for_word(typed: str) -> str:
    """What a word without `=` was meant to be: a switch, a choice of a group, or an option without its value."""
    word = typed.lstrip("-+~ ")
    key = word.replace("-", "_")
    hint = names.hint_of(key)
    if hint is not None and names.without_none(hint)[0] is bool:
        return f"{key}=true"
    if key == "help":
        return "--help"
    if key in _VERBS:
        return f"leave out {typed}: training is what happens"
    if key in Action.__members__:
        return f"action={key}"
    owners = [group for group in GROUPS if word in options(group)]
    if owners:
        return f"{owners[0]}={word}"
    hardware = likely_hw(word)
    if hardware is not None:
        return f"{HW}={hardware}"
    likely = names.likely_paths(word, GROUPS)
    if not likely:
        return f"leave out {typed}; --help lists the options"
    return f"{likely[0]}={'true' if names.hint_of(likely[0]) is bool else 'VALUE'}"


def for_key(key: str, text: str, typed: str) -> str:
    """An override of the option that `key` seems to mean, with the same value."""
    likely = names.likely_paths(key, GROUPS)
    if not likely:
        return f"leave out {typed}; --help lists the options"
    if likely[0] == HW and text.isdigit():
        return f"hw.n_gpus_per_node={text}"
    able = [path for path in likely if takes(path, text)]
    return assignment(able[0], text) if able else f"{likely[0]}={RANGES[likely[0]].fix}"


def for_choice(group: str, text: str) -> str:
    """A choice of the group that exists."""
    listed = options(group)
    if group == "data" and ("/" in text or Path(text).expanduser().exists()):
        return f"data=text {assignment('data.path', text)}"
    if group == HW:
        return f"{HW}={likely_hw(text) or 'auto'}"
    nickname = names.NICKNAMES.get(text.lower().replace("-", "_"))
    return f"{group}={nickname if nickname in listed else (names.nearest(text, listed) or listed)[0]}"


def for_card(name: str) -> str:
    """`hw.card=` stands above `hw=`, wherever the two are written, so both are said where a number was meant."""
    meant = likely_hw(name)
    if meant is not None:
        return f"{HW}={meant} {HW}.card={parse_hw(meant)['card']}"
    return f"{HW}.card={[*similar_cards(name), 'auto'][0]}"


def for_two(group: str, chosen: str, path: str, named: str) -> Iterator[Problem]:
    """A choice and an option that contradict each other; nothing where they agree."""
    first, whole = chosen, named
    if group == HW:
        machine = parse_hw(chosen)
        first, counts = str(machine["card"]), [str(n) for n in list(machine.values())[1:]]
        whole = "x".join([*(counts[1:] if counts[:1] == ["1"] else counts), named])
    is_mine = group == HW and named == "custom"  # what a refusal of unknown numbers asks for, at the end of the command
    if not is_mine and not (is_same_machine(first, named) if group == HW else first == named):
        message = f"{group}={chosen} is another one; which of the two is meant?"
        yield Problem(path=path, value=named, message=message, fix=f"{group}={whole}, or {path}={first}")


def for_value(key: str, hint: Any, text: str) -> str:
    """An override of this option that works."""
    kind, optional = names.without_none(hint)
    if key in GROUPS:
        return for_choice(key, text)
    value: Any = None
    if isinstance(kind, type) and issubclass(kind, Enum):
        members = [member.name for member in kind]
        nickname = names.NICKNAMES.get(text.lower())
        value = nickname if nickname in members else next(iter(names.nearest(text, members)), None)
    elif kind is bool:
        value = _truth(key, text)
    elif kind in (int, float):
        value = understood(key, kind, text)
    elif kind is not str and not is_dataclass(kind) and re.fullmatch(r"[\w,]+", text):
        words = "" if text.lower() in ("null", "none") else text
        return f"'{key}=[{words}]'" if names.is_list(hint) else _default(key, optional)
    return _default(key, optional) if value is None else f"{key}={value}"


def _truth(key: str, text: str) -> str | None:
    """A bill costs nothing, so that one is proposed to whoever writes anything else after `dry_run=`."""
    word = next(iter(names.nearest(text, (*_YES, *_NO))), "true" if key == "dry_run" else None)
    return None if word is None else str(word in _YES).lower()


def for_sweep(key: str, hint: Any, text: str, *, is_call: bool) -> tuple[str, str]:
    """Several values where one is wanted: what to say, and what was meant: a number, text, list, machine, or a grid."""
    grid = "several values are a grid, which needs -m"
    if hint is not None and names.without_none(hint)[0] is str and not is_call:
        return f"{grid}; one text with a comma needs quotes", quoted(key, text)
    if key == HW and re.fullmatch(r"\d+,[^,]+", text) and (meant := likely_hw(text)) is not None:
        return f"{grid}; one machine is written as below", f"{HW}={meant}"
    if (number := one_number(key, hint, text)) is not None:
        words = "one number has a point before its decimals and no commas"
        return f"{grid}; {words}", f"{key}={number}"
    if hint is not None and names.is_list(hint):
        return f"{grid}; a list stands in brackets", f"'{key}=[{text}]'"
    if hint is not None and names.without_none(hint)[0] in (int, float) and not is_call:
        kind, parts = names.without_none(hint)[0], text.split(",")
        torn = [_NUMBER_FIRST.match(part) and not _NUMBER_FIRST.fullmatch(part) for part in parts]  # 2h, 5M
        values = [understood(key, kind, part) if t else part for t, part in zip(torn, parts, strict=True)]
        if None in values:
            return grid, _default(key, names.without_none(hint)[1])
        text = ",".join(filter(None, values))
    return grid, f"-m {assignment(key, text)}"


def one_number(key: str, hint: Any, text: str) -> str | None:
    """What `1,5`, `1,500` and `10,5B` mean to many: a point for the decimal comma, nothing between thousands."""
    kind = None if hint is None else names.without_none(hint)[0]
    if kind in (int, float) and _THOUSANDS.fullmatch(text):
        return text.replace(",", "")
    if (number := names.with_decimal_point(key, text)) is not None:
        return number
    if kind is float and _WITH_UNIT.fullmatch(text):  # 1,5h
        return understood(key, float, text.replace(",", "."))
    if key in names.SHORT_COUNTS and _DECIMAL_COMMA.fullmatch(text[:-1]) and text[-1:].lower() in SHORT:
        tokens = count(text.replace(",", "."))
        return None if tokens is None else str(tokens)
    return None


def _default(key: str, optional: bool) -> str:
    """An example that changes nothing: what was meant is not known."""
    default = names.all_options()[key][1] if key in names.all_options() else None
    if default is not None:
        return f"{key}={str(default).lower() if isinstance(default, bool) else getattr(default, 'name', default)}"
    kind = names.without_none(names.hint_of(key))[0]
    if not optional and isinstance(kind, type) and issubclass(kind, Enum):  # a group's choice decides it
        return f"{key}={next(iter(kind)).name}"
    return f"{key}=null" if optional else f"leave out {key}="
