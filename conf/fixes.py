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
from conf.choices import Action
from conf.hardware import GROUP as HW
from conf.register import GROUPS, options
from preflight.errors import Problem
from preflight.resolve.hw_names import is_same_machine, likely_hw, parse_hw, similar_cards
from preflight.resolve.ranges import RANGES

_SHORT = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_COUNT = re.compile(r"([0-9][0-9_,]*\.?[0-9]*(?:e[+-]?[0-9]+)?)([kmbt]?)", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"\d+,\d+")
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(,\d{3})+")
_AND_MINUTES = re.compile(r"(\d+)[h:](\d{1,2})(?:m|min)?", re.IGNORECASE)
_NUMBER_FIRST = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)
_AMOUNT = re.compile(r"(us)?\$?\s*(\d+\.?\d*|\.\d+)\s*([a-z$%]*)", re.IGNORECASE)
# (unit of the option, as its name ends; unit typed) -> factor; the option's own unit has 1
_UNITS: dict[str, dict[str, float]] = {
    "hours": {
        "h": 1,
        "hr": 1,
        "hrs": 1,
        "hour": 1,
        "hours": 1,
        "m": 1 / 60,
        "min": 1 / 60,
        "d": 24,
        "day": 24,
        "days": 24,
    },
    "seconds": {"s": 1, "sec": 1, "seconds": 1, "m": 60, "min": 60, "h": 3600},
    "usd": {"": 1, "$": 1, "usd": 1, "k": 1000},
    "hour": {"": 1, "$": 1, "usd": 1},  # usd_per_hour
    "kwh": {"kwh": 1, "wh": 1 / 1000, "mwh": 1000, "": 1, "$": 1, "usd": 1},
    "watts": {"w": 1, "watt": 1, "watts": 1, "kw": 1000},
    "gib": {"g": 1, "gb": 1, "gib": 1},
    "fraction": {"%": 1 / 100},
}
_SHELL = re.compile(r"[\s'\"$&|;<>(){}*?!#\\\[\]]")
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


def for_word(word: str) -> str:
    """What a word without `=` was meant to be: a switch, a choice of a group, or an option without its value."""
    key = word.replace("-", "_")
    hint = names.hint_of(key)
    if hint is not None and names.without_none(hint)[0] is bool:
        return f"{key}=true"
    if key == "help":
        return "--help"
    if key in _VERBS:
        return f"leave out {word}: training is what happens"
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
        return f"leave out {word}; --help lists the options"
    return f"{likely[0]}={'true' if names.hint_of(likely[0]) is bool else 'VALUE'}"


def for_key(key: str, text: str) -> str:
    """An override of the option that `key` seems to mean, with the same value."""
    likely = names.likely_paths(key, GROUPS)
    if not likely:
        return f"leave out {key}=; --help lists the options"
    if likely[0] == HW and text.isdigit():
        return f"hw.n_gpus_per_node={text}"
    takes = [path for path in likely if _takes(path, text)]
    return assignment(takes[0], text) if takes else f"{likely[0]}={RANGES[likely[0]].fix}"


def _takes(path: str, text: str) -> bool:
    """The number lies in the option's range; what is no number is judged when it is typed there."""
    allowed, number = RANGES.get(path), re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", text)
    return allowed is None or number is None or allowed.admits(float(text))


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
        value = nickname if nickname in members else (names.nearest(text, members) or members)[0]
    elif kind is bool:
        value = "false" if text.lower() in ("0", "no", "n", "off", "f", "none") else "true"
    elif kind is int:
        value = _whole_number(text) or _number_before(key, text, r"[-+]?\d+")
    elif kind is float and (number := _amount(key, text) or _number_before(key, text)) is not None:
        value = number
    elif kind is not str and not is_dataclass(kind) and re.fullmatch(r"[\w,]+", text):
        words = "" if text.lower() in ("null", "none") else text
        return f"'{key}=[{words}]'" if names.is_list(hint) else _default(key, optional)
    return _default(key, optional) if value is None else f"{key}={value}"


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
        parts = text.split(",")
        torn = [_NUMBER_FIRST.match(part) and not _NUMBER_FIRST.fullmatch(part) for part in parts]  # 2h, 5M
        values = [
            for_value(key, hint, part).partition("=")[2] if t else part for t, part in zip(torn, parts, strict=True)
        ]
        text = ",".join(values)
    return grid, f"-m {assignment(key, text)}"


def one_number(key: str, hint: Any, text: str) -> str | None:
    """What `1,5`, `1,500` and `10,5B` mean to many: a point for the decimal comma, nothing between thousands."""
    kind = None if hint is None else names.without_none(hint)[0]
    if kind in (int, float) and _THOUSANDS.fullmatch(text):
        return text.replace(",", "")
    if (number := names.with_decimal_point(key, text)) is not None:
        return number
    if key in names.SHORT_COUNTS and _DECIMAL_COMMA.fullmatch(text[:-1]) and text[-1:].lower() in _SHORT:
        tokens = count(text.replace(",", "."))
        return None if tokens is None else str(tokens)
    return None


def count(text: str) -> int | None:
    """`10B`, `1e9`, `491,520` as a whole number."""
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        return None
    number = float(match[1].replace(",", "").replace("_", "")) * _SHORT.get(match[2].lower(), 1)
    return int(number) if number.is_integer() else None


def _amount(key: str, text: str) -> str | None:
    """`2h`, `1h30`, `$5`, `95%` in the unit that the option's name ends with."""
    if key.endswith("hours") and (clock := _AND_MINUTES.fullmatch(text.strip())) is not None:
        return f"{int(clock[1]) + int(clock[2]) / 60:g}"
    match = _AMOUNT.fullmatch(text.strip())
    factor = _UNITS.get(re.split(r"[._]", key)[-1], {}).get(match[3].lower()) if match is not None else None
    return None if match is None or factor is None else f"{float(match[2]) * factor:g}"


def _number_before(key: str, text: str, form: str = "") -> str | None:
    """`6e-4x`, `0.1.2`: the number that it begins with, where the option takes it."""
    number = re.match(form, text) if form else _NUMBER_FIRST.match(text)
    return number[0] if number is not None and _takes(key, number[0]) else None


def _whole_number(text: str) -> int | None:
    if count(text) is not None:
        return count(text)
    return round(float(text)) if re.fullmatch(r"-?\d+\.\d+", text) else None


def _default(key: str, optional: bool) -> str:
    default = names.all_options()[key][1] if key in names.all_options() else None
    if default is not None and not isinstance(default, Enum):
        return f"{key}={str(default).lower() if isinstance(default, bool) else default}"
    return f"{key}=null" if optional else f"leave out {key}="
