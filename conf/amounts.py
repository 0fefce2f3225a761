"""How much did somebody mean whose number cannot be read as it was typed? Known slips only, and all of the text.

`6e` or `100x` may be anything: half of what was typed is no cure, since the run would start with it.
"""

from __future__ import annotations

import re

from conf import names
from preflight.resolve.ranges import RANGES

SHORT = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_OTHER_SHORT = {"g": "b", "gb": "b", "kb": "k", "mb": "m", "tb": "t", "bn": "b", "mn": "m", "tn": "t"}
_WORDS = {"thousand": "k", "million": "m", "billion": "b", "trillion": "t"}
# 2k of these are 2,048: lengths are powers of two, or multiples of one.
_BINARY = ("sequence_length", "n_positions", "loss_chunk_tokens")
_COUNT = re.compile(r"((?:\d{1,3}(?:,\d{3})+|\d[\d_]*)\.?\d*(?:e[+-]?\d+)?)([kmbt]?)", re.IGNORECASE)
_WITH_WORDS = re.compile(r"([\d.,_]+(?:e[+-]?\d+)?)\s*([a-z]*)\s*([a-z]*)", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)
_AND_MINUTES = re.compile(r"(\d+)[h:](\d{1,2})(?:m|min)?", re.IGNORECASE)
_AMOUNT = re.compile(r"(us)?\$?\s*(\d+\.?\d*|\.\d+)\s*([a-z$%]*)", re.IGNORECASE)
_DASHES = re.compile(r"\s?[\u2010-\u2015\u2212\ufe63\uff0d]\s?")  # as word processors and web pages have them
_SPACES = re.compile(r"[\u00a0\u2007\u2009\u202f]")
_APART = re.compile(r"(?<=\d) (?=\d{3}(?!\d))")  # 1 000 000
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
    "gib": {
        "g": 1,
        "gb": 1,
        "gib": 1,
        "t": 1024,
        "tb": 1024,
        "tib": 1024,
        "m": 1 / 1024,
        "mb": 1 / 1024,
        "mib": 1 / 1024,
    },
}


def understood(key: str, kind: type, text: str) -> str | None:
    """The number that all of the text stands for, where the option takes it; None: nobody can tell."""
    cleaned = _APART.sub("", _DASHES.sub("-", _SPACES.sub(" ", text.strip(" '\""))))
    without_double = re.sub(r"([a-z$%])\1$", r"\1", cleaned, flags=re.IGNORECASE)  # 10BB, 95%%; 10kk is a million
    for each in dict.fromkeys((cleaned, cleaned if cleaned[-2:].lower() == "kk" else without_double)):
        number = _whole(key, each) if kind is int else _amount(key, each)
        if number is not None and takes(key, number):
            return number
    return None


def takes(path: str, text: str) -> bool:
    """The number lies in the option's range; what is no number is judged when it is typed there."""
    allowed, number = RANGES.get(path), _NUMBER.fullmatch(text)
    return allowed is None or number is None or allowed.admits(float(text))


def count(text: str) -> int | None:
    """`10B`, `1e9`, `491,520` as a whole number."""
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        return None
    number = float(match[1].replace(",", "").replace("_", "")) * SHORT.get(match[2].lower(), 1)
    return int(number) if number.is_integer() else None


def _whole(key: str, text: str) -> str | None:
    """Of a whole number; `10M tokens` where tokens are counted, `2k` of a length, `10.5` rounded."""
    if re.fullmatch(r"-?\d+\.\d+", text):
        return str(round(float(text)))
    match = _WITH_WORDS.fullmatch(text)
    if match is None:
        return text if re.fullmatch(r"[-+]?\d+", text) else None
    words = [word.lower() for word in match.groups()[1:] if word]
    if words and _is_unit(key, words[-1]):
        words.pop()
    if len(words) > 1:
        return None
    short = words[0] if words else ""
    letter = _WORDS.get(short.removesuffix("s"), _OTHER_SHORT.get(short, short))
    if letter in ("k", "m") and key.rpartition(".")[2] in _BINARY:
        number = count(match[1])
        return None if number is None else str(number * (1024 if letter == "k" else 1024**2))
    number = count(match[1] + letter)
    return None if number is None else str(number)


def _is_unit(key: str, word: str) -> bool:
    """What the option counts, as its name or that of a length has it."""
    leaf = key.rpartition(".")[2]
    unit = word.removesuffix("s")
    return unit in leaf.split("_") or f"{unit}s" in leaf.split("_") or (unit == "token" and leaf in _BINARY)


def _amount(key: str, text: str) -> str | None:
    """`2h`, `1h30`, `$5`, `95%` in the unit that the option's name ends with."""
    if _NUMBER.fullmatch(text):
        return text
    if (number := names.with_decimal_point(key, text)) is not None:
        return number
    if key.endswith("hours") and (clock := _AND_MINUTES.fullmatch(text)) is not None:
        return f"{int(clock[1]) + int(clock[2]) / 60:g}"
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return None
    allowed, unit = RANGES.get(key), match[3].lower()
    if unit == "%" and not match[1] and "$" not in text and allowed is not None and allowed.high <= 1:
        return f"{float(match[2]) / 100:g}"
    factor = _UNITS.get(re.split(r"[._]", key)[-1], {}).get(unit)
    return None if factor is None else f"{float(match[2]) * factor:g}"
