"""What is wrong with each override, judged alone, so that all faults are told at once (Hydra stops at its first)?

Every cure can be added to the end of the faulty command, where the last one counts; only a name that does not exist has
to be taken out, and its cure says so: `model=tiny instead of modle=tiny`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import ModuleType
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf import names
from conf.hardware import GROUP as HW
from conf.register import GROUPS, options
from conf.schema import Config
from conf.words import NO_DASHES, NO_EQUALS, Phrase
from preflight.errors import Problem
from preflight.resolve.hw_names import is_machine, likely_hw, parse_hw, unknown_card

IDENTITIES = {HW: f"{HW}.card", "data": "data.kind", "tracking": "tracking.backend"}
_MEANS_SOMETHING = re.compile(r"[,=()\[\]{}'\"\\]")  # to the grammar: a list, a call, quotes
_SWEEP_CALL = re.compile(r"(choice|range|interval|glob|shuffle|sort|tag|int|float|str|bool)\(")


@dataclass(slots=True, kw_only=True)
class Judged:
    """One override: parsed when it is sound, its faults when it is not."""

    parsed: Override | None
    problems: list[Problem]


def _fixes() -> ModuleType:
    """Sound command lines do not pay for it."""
    from conf import fixes

    return fixes


def judge_all(given: Sequence[Phrase], *, multirun: bool) -> tuple[list[Override], list[Problem]]:
    """Every sound override, and every fault of the others."""
    parser = OverridesParser.create(config_loader=None)
    judged = [_judge_phrase(parser, phrase, multirun=multirun) for phrase in given]
    problems = [problem for each in judged for problem in each.problems]
    sound = [each.parsed for each in judged if each.parsed is not None]
    return sound, [*problems, *_contradictions(sound)]


def overruled(sound: Sequence[Override]) -> list[str]:
    """`hw=4x4090 hw.n_gpus_per_node=8`: the number in the name does not count, and a note says so."""
    given = {override.key_or_group: override.value() for override in sound if not override.is_sweep_override()}
    counts = [(path, given[path]) for path in (f"{HW}.n_nodes", f"{HW}.n_gpus_per_node") if path in given]
    if not counts or HW not in given:
        return []
    named = parse_hw(str(given[HW]))
    return [
        f"{HW}={given[HW]} and {path}={count}: {path} counts"
        for path, count in counts
        if named.get(path.removeprefix(f"{HW}."), count) != count
    ]


def _contradictions(sound: Sequence[Override]) -> Iterator[Problem]:
    """`hw=4x4090 hw.card=h100`: a group's choice, and the one option of it that says the same, say different things."""
    given = {override.key_or_group: override for override in sound if not override.is_sweep_override()}
    for group, path in IDENTITIES.items():
        if group in given and path in given:
            chosen, named = str(given[group].value()), str(given[path].value())
            yield from _fixes().for_two(group, chosen, path, named)


def _judge_phrase(parser: OverridesParser, phrase: Phrase, *, multirun: bool) -> Judged:
    """What was meant is judged too, so that the cure of a badly typed value is a good one."""
    judged = [_judge(parser, line, multirun=multirun) for line in phrase.meant]
    if not phrase.fault:
        return replace(judged[0], problems=[_instead(problem, phrase) for problem in judged[0].problems])
    cures = [
        each.problems[0].fix if each.problems else _fixes().as_typed(*line.split("=", 1))
        for line, each in zip(phrase.meant, judged, strict=True)
    ]
    problem = Problem(path="", value="", message=f"{phrase.typed}: {phrase.fault}", fix=" ".join(cures))
    return Judged(parsed=None, problems=[_instead(problem, phrase)])


def _instead(problem: Problem, phrase: Phrase) -> Problem:
    """A word that gives no existing option is not superseded by its cure."""
    if len(phrase.options_given()) == len(phrase.meant) or problem.fix.startswith(("leave out", "no ")):
        return problem
    return replace(problem, fix=f"{problem.fix} instead of {phrase.typed}")


def _judge(parser: OverridesParser, line: str, *, multirun: bool) -> Judged:
    shape_fault = _shape_fault(line)
    if shape_fault is not None:
        return Judged(parsed=None, problems=[shape_fault])
    key, _, text = line.partition("=")
    key_fault = _key_fault(key, text, line)
    if key_fault is not None:
        return Judged(parsed=None, problems=[_with_a_sound_value(parser, key_fault, multirun=multirun)])
    parsed = _parse(parser, key, text)
    if parsed is None:
        return Judged(parsed=None, problems=[_quoting_fault(key, text)])
    is_plain = parsed.value_type is not None and not parsed.is_sweep_override()
    if key == HW and is_plain and not isinstance(parsed.value(), str):
        parsed = replace(parsed, _value=text)  # hw=4090 is a name, not a number
    parsed, problems = _value_faults(parsed, text, multirun=multirun)
    return Judged(parsed=parsed, problems=problems)


def _with_a_sound_value(parser: OverridesParser, key_fault: Problem, *, multirun: bool) -> Problem:
    """`modle=gpt2_125m` has two faults, and one cure."""
    words = shlex.split(key_fault.fix) if "=" in key_fault.fix and "leave out" not in key_fault.fix else []
    if len(words) != 1:
        return key_fault
    judged = _judge(parser, words[0], multirun=multirun)
    return replace(key_fault, fix=judged.problems[0].fix) if judged.problems else key_fault


def _parse(parser: OverridesParser, key: str, text: str) -> Override | None:
    """None: Hydra's grammar cannot read it. Text that it cannot read, such as ~/file, but that is plain, is taken."""
    try:
        return parser.parse_override(f"{key}={text}")
    except HydraException:
        hint = names.hint_of(key)
        if hint is None or names.without_none(hint)[0] is not str or _MEANS_SOMETHING.search(text):
            return None
    return parser.parse_override(f"{key}={_fixes().literal(text)}")


def _shape_fault(line: str) -> Problem | None:
    """Faults that can be seen without knowing any name: dashes, prefixes, no `=`, spaces round it."""
    bare = line.lstrip("-+~ ")
    key, equals, value = (part.strip() for part in bare.partition("="))
    if line[:1] in ("-", "+"):
        fix = _fixes().for_key(key, value, line) if equals else _fixes().for_word(line)
        fault = _key_fault(key, value, line) if line.startswith("+") else None
        why = NO_DASHES
        if line.startswith("+"):
            why = "every option exists already, nothing can be added with +"
        return fault or Problem(path="", value="", message=f"{line}: {why}", fix=fix)
    if line.startswith("~"):
        message = f"{line}: an option cannot be removed; null unsets it where that is allowed"
        return Problem(path=key, value=value, message=message, fix=f"leave out {line}")
    if not equals:
        return Problem(path="", value="", message=f"{line}: {NO_EQUALS}", fix=_fixes().for_word(line))
    if not key:
        return Problem(path="", value="", message=f"{line}: nothing stands left of the =", fix="no spaces round the =")
    typed_key, _, typed_value = line.partition("=")
    if typed_key != key or typed_value != typed_value.lstrip():
        return Problem(path=key, value=value, message="spaces round the =", fix=_fixes().assignment(key, value))
    return None


def _key_fault(key: str, text: str, typed: str) -> Problem | None:
    """Unknown names."""
    if key.startswith(("hydra.", "hydra/")) or key == "hydra":
        message = "Hydra's own settings are not used: runs are written to runs_dir/<time>-<name>/"
        return Problem(path=key, value=text, message=message, fix="runs_dir=runs")
    if key in GROUPS or names.hint_of(key) is not None:
        return None
    likely = names.likely_paths(key, GROUPS)
    message = "no such option" + (
        f"; did you mean {' or '.join(likely)}?" if likely else _contents(key.partition(".")[0])
    )
    return Problem(path=key, value=text, message=message, fix=_fixes().for_key(key, text, typed))


def _contents(group: str) -> str:
    node = GROUPS.get(group)
    return f"; {group} has {', '.join(field.name for field in fields(node))}" if node is not None else ""


def _quoting_fault(key: str, text: str) -> Problem:
    hint = names.hint_of(key)
    if hint is not None and names.without_none(hint)[0] is str:
        message = "characters such as , = ( ) [ ] { } # ' \" need quotes that survive the shell"
        return Problem(path=key, value=text, message=message, fix=_fixes().quoted(key, text))
    cleaned = text.strip("= \t'\"")
    message = "cannot be read" + (
        f"; {key} takes {names.describe(hint)}" if hint is not None and key not in GROUPS else ""
    )
    if hint is not None and names.without_none(hint)[0] is not None and text.startswith("["):
        return Problem(path=key, value=text, message=message, fix=f"'{key}=[{text.strip('[] ')}]'")
    return Problem(path=key, value=text, message=message, fix=_fixes().for_value(key, hint, cleaned))


def _value_faults(parsed: Override, text: str, *, multirun: bool) -> tuple[Override, list[Problem]]:
    """Values of a sweep are judged one by one."""
    key = parsed.key_or_group
    if not parsed.is_sweep_override():
        parsed = replace(parsed, _value=_whole(key, parsed._value))
        return parsed, list(_value_fault(key, parsed.value(), text))
    if isinstance(parsed._value, Glob) and (key == HW or key not in GROUPS):
        listed = f"{HW}=1x4090,8xh100" if key == HW else f"{key}=A,B"
        message = f"takes no patterns; list the values: {listed}"
        return parsed, [Problem(path=key, value=text, message=message, fix=listed if multirun else f"-m {listed}")]
    if isinstance(parsed._value, IntervalSweep):
        message = "an interval has no list of values; a grid needs one"
        return parsed, [Problem(path=key, value=text, message=message, fix=f"{key}=A,B with -m")]
    if not multirun:
        is_call = _SWEEP_CALL.match(text) is not None
        message, fix = _fixes().for_sweep(key, names.hint_of(key), text, is_call=is_call)
        return parsed, [Problem(path=key, value=text, message=message, fix=fix)]
    if not isinstance(parsed._value, ChoiceSweep):
        return parsed, []  # range() and glob(): their values are judged when the grid is spread out
    items = [Override._convert_value(item) for item in parsed._value.list]
    return parsed, [fault for item in items for fault in _value_fault(key, _whole(key, item), str(item))]


def _whole(key: str, value: Any) -> Any:
    """1e9 is a whole number where one is wanted, 10B one of tokens, and digits are a name where one is wanted."""
    if key in GROUPS:
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    hint = names.hint_of(key)
    if isinstance(value, float) and hint is not None and names.without_none(hint)[0] is int and value.is_integer():
        return int(value)
    if isinstance(value, str) and key in names.SHORT_COUNTS:
        number = _fixes().count(value)
        return value if number is None else number
    return value


def _value_fault(key: str, value: Any, text: str) -> Iterator[Problem]:
    hint = names.hint_of(key)
    if key in GROUPS:
        yield from _choice_fault(key, value, text)
    elif not _fits(key, hint, value):
        kind, _ = names.without_none(hint)
        message = f"takes {names.describe(hint)}"
        if is_dataclass(kind):
            message = f"is a group of options: {', '.join(field.name for field in fields(kind))}"
        yield Problem(path=key, value=text, message=message, fix=_fixes().for_value(key, hint, text))
    elif key == f"{HW}.card" and not text.startswith("${") and not is_machine(name := str(value)):
        message = f"one card is wanted, its number goes to {HW}=4x4090" if likely_hw(name) else unknown_card(name)
        yield Problem(path=key, value=text, message=message, fix=_fixes().for_card(name))


def _choice_fault(group: str, value: Any, text: str) -> Iterator[Problem]:
    if value is None and group == "experiment":
        return
    if isinstance(value, str) and (value in options(group) or (group == HW and value not in ("", "schema"))):
        return
    shown = "4x4090, 2x8xh100, auto, cpu, ..." if group == HW else ", ".join(options(group))
    message = f"no such choice; there are {shown}"
    if isinstance(value, dict):
        message = f"{group} takes a name ({shown}); single values go to {group}.KEY=VALUE"
    yield Problem(path=group, value=text, message=message, fix=_fixes().for_choice(group, text))


def _fits(key: str, hint: Any, value: Any) -> bool:
    """Would OmegaConf take it?"""
    kind, optional = names.without_none(hint)
    if value is None:
        return optional
    if isinstance(value, str) and value.startswith("${"):
        return True  # resolved when composed
    if kind in (int, float, bool, str) and type(value) is kind:
        return True
    parent_path, _, leaf = key.rpartition(".")
    parent = names.without_none(names.hint_of(parent_path))[0] if parent_path else Config
    try:
        OmegaConf.update(OmegaConf.structured(parent), leaf, value, merge=True)
    except (OmegaConfBaseException, ValueError, TypeError, AttributeError, OverflowError):  # the last: 400 digits
        return False
    return True
