"""Which words of a command line belong together, and which option does each give? The last one given counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from conf import names
from conf.register import GROUPS

NO_COMMAS = "no commas between options"
NO_SPACES = "no spaces round the =, and none within a value"
NO_EQUALS = "an override is KEY=VALUE"
NO_DASHES = "options are written without dashes"
NEEDS_QUOTES = "a text with spaces needs quotes"
_SPACED = ("tracking.notes", "data.path", "data.dir", "runs_dir")  # texts in which spaces are common
_BETWEEN = re.compile(r"\s*[,\s]\s*(?=[A-Za-z_][\w./-]*=)")
_TRUTH = ("true", "false", "yes", "no", "on", "off", "1", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """One word, or several that are one mistake."""

    typed: str
    meant: tuple[str, ...]  # KEY=VALUE each; the word itself when it stands alone
    fault: str = ""  # why the words cannot stay as they were typed; "" is judged by its value

    def options_given(self) -> tuple[str, ...]:
        """The existing options that it gives; those that do not exist are never superseded."""
        return tuple(key for key in map(key_of, self.meant) if is_option(key))


def is_option(key: str) -> bool:
    """A group or an option of the configuration."""
    return key in GROUPS or names.hint_of(key) is not None


def key_of(line: str) -> str:
    """Left of the `=`, as the schema spells it."""
    key = line.lstrip("+-").partition("=")[0].strip()
    return key.replace("-", "_") if "=" in line or line.startswith("-") else key


def phrases(words: Sequence[str]) -> list[Phrase]:
    """The words in their order, those of one mistake in one phrase."""
    found, rest = [], list(words)
    while rest:
        phrase, n_words = _first(rest)
        found.append(phrase)
        del rest[:n_words]
    return found


def last_ones(given: Sequence[Phrase]) -> tuple[list[Phrase], list[str]]:
    """Without what a later word gives again, sound or not; a note where the values differ."""
    kept: list[Phrase] = []
    later: set[str] = set()
    for phrase in reversed(given):
        keys = phrase.options_given()
        if len(keys) < len(phrase.meant) or not later.issuperset(keys):
            kept.insert(0, phrase)
        later.update(keys)
    values: dict[str, list[str]] = {}
    for phrase in given:
        for line in phrase.meant:
            if key_of(line) in phrase.options_given():
                values.setdefault(key_of(line), []).append(line.partition("=")[2].strip())
    repeated = {key: texts for key, texts in values.items() if len(set(texts)) > 1}
    return kept, [f"{key} given {len(texts)} times: {texts[-1]} counts" for key, texts in repeated.items()]


def _first(words: list[str]) -> tuple[Phrase, int]:
    """The phrase at the start of the words, and how many of them it takes."""
    for read in (
        _with_spaces_in_a_text,
        _with_a_space_in_a_list,
        _with_commas,
        _in_one_word,
        _with_spaces,
        _without_equals,
    ):
        found = read(words)
        if found is not None:
            return found
    return Phrase(typed=words[0], meant=(words[0],)), 1


def _with_commas(words: list[str]) -> tuple[Phrase, int] | None:
    """`model=tiny, hw=4x4090,` and `model=tiny , hw=4x4090`."""
    n_words = 1
    while n_words < len(words) and (words[n_words - 1].endswith(",") or words[n_words] == ","):
        word = words[n_words]
        if word != "," and (not _is_override(word) or key_of(word) in map(key_of, words[:n_words])):
            break
        n_words += 1
    is_one_text = n_words == 1 and _is_text(words[0])
    if not _is_override(words[0]) or is_one_text or not (words[0].endswith(",") or n_words > 1):
        return None
    meant = tuple(word.rstrip(",") for word in words[:n_words] if word != ",")
    return Phrase(typed=" ".join(words[:n_words]), meant=meant, fault=NO_COMMAS), n_words


def _with_spaces_in_a_text(words: list[str]) -> tuple[Phrase, int] | None:
    """`tracking.notes=my first run`."""
    n_words = 1
    while n_words < len(words) and _is_loose(words[n_words:]) and not is_option(words[n_words]):
        n_words += 1
    if n_words == 1 or "=" not in words[0] or key_of(words[0]) not in _SPACED:
        return None
    return _joined(words[:n_words], " ".join(words[:n_words]), NEEDS_QUOTES)


def _with_a_space_in_a_list(words: list[str]) -> tuple[Phrase, int] | None:
    """`hw=1x4090, 8xh100` and `lowering.keep=[batch, model]`."""
    n_words = 1
    while words[n_words - 1].endswith(",") and _is_loose(words[n_words : n_words + 1]) and words[n_words] != ",":
        n_words += 1
    if n_words == 1 or not _is_override(words[0]):
        return None
    return _joined(words[:n_words], "".join(words[:n_words]).rstrip(","), NO_SPACES)


def _in_one_word(words: list[str]) -> tuple[Phrase, int] | None:
    """`"model=tiny hw=4x4090"` and `model=tiny,hw=4x4090`; a text may contain anything."""
    parts = _BETWEEN.split(words[0])
    if len(parts) == 1 or _is_text(parts[0]) or not all(_is_override(part) for part in parts):
        return None
    in_python = ", ".join(f'"{part}"' for part in parts)
    fault = f"each override is a word of its own, in Python a string of its own: bill({in_python})"
    if any("," in between for between in _BETWEEN.findall(words[0])):
        fault = NO_COMMAS
    return Phrase(typed=words[0], meant=tuple(parts), fault=fault), 1


def _with_spaces(words: list[str]) -> tuple[Phrase, int] | None:
    """`model = tiny`, `model =tiny` and `model= tiny`."""
    head, following = words[0], words[1:3]
    is_key = _means_option(head)
    if is_key and following[:1] == ["="] and _is_loose(following[1:]):
        return _joined(words[:3], f"{head}={following[1]}", NO_SPACES)
    if is_key and following and re.match(r"=[^=]", following[0]):
        return _joined(words[:2], head + following[0], NO_SPACES)
    if head.endswith("=") and _means_option(head[:-1]) and _is_loose(following[:1]):
        return _joined(words[:2], head + following[0], NO_SPACES)
    return None


def _without_equals(words: list[str]) -> tuple[Phrase, int] | None:
    """`model gpt2_124m` and `--model gpt2_124m`."""
    head, following = words[0], words[1:2]
    if "=" in head or not _is_loose(following) or is_option(following[0]):
        return None
    if _type_of(head) is bool and following[0].lower() not in _TRUTH:
        return None
    if head.startswith("--"):
        return _joined(words[:2], f"{head.lstrip('-')}={following[0]}", NO_DASHES)
    return _joined(words[:2], f"{head}={following[0]}", NO_EQUALS) if _means_option(head) else None


def _joined(words: list[str], line: str, fault: str) -> tuple[Phrase, int]:
    return Phrase(typed=" ".join(words), meant=(line,), fault=fault), len(words)


def _is_override(word: str) -> bool:
    """KEY=VALUE of an option that exists."""
    return "=" in word and is_option(key_of(word))


def _type_of(word: str) -> object:
    hint = names.hint_of(key_of(word))
    return None if hint is None else names.without_none(hint)[0]


def _is_text(word: str) -> bool:
    """Of an option that takes any text."""
    return key_of(word) not in GROUPS and _type_of(word) is str


def _means_option(word: str) -> bool:
    """An option's name, ours or another program's."""
    return is_option(word) or word.replace("-", "_").lower() in names.SYNONYMS


def _is_loose(words: list[str]) -> bool:
    """A word that can only be the value of the one before it."""
    return bool(words) and "=" not in words[0] and not words[0].startswith(("-", "+", "~"))
