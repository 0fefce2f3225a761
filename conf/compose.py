"""What does this command line ask for: one configuration, a grid of them, or a page to print?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from math import prod
from typing import cast

from hydra.core.override_parser.types import ChoiceSweep, Glob, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf import overrides as judge
from conf.names import with_decimal_point
from conf.register import GROUPS, Chosen, merge, options
from conf.schema import Config
from conf.words import Phrase, key_of, last_ones, phrases
from preflight.errors import ConfigError, Problem

MAX_ROWS = 1000  # of a grid: some 10 s of composing


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRow:
    """One cell of a grid: what varies, and the whole configuration."""

    overrides: tuple[str, ...]  # all of them, as they would be typed
    varying: tuple[str, ...]  # only those that differ between rows
    config: Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Exactly one of `config`, `grid` and `text` is set."""

    config: Config | None  # a run or a bill
    grid: tuple[GridRow, ...]  # -m
    text: str | None  # --help, --cfg job: print it and stop
    overrides: tuple[str, ...]  # as typed
    notes: tuple[str, ...]  # what was ignored, and why; which of two values counts


@dataclass(slots=True, kw_only=True)
class _Flags:
    help: bool = False
    cfg: bool = False
    multirun: bool = False
    completion: str | None = None


def compose(argv: Sequence[str], chosen: Chosen | None = None) -> Request:
    """The request behind `argv` (without the program's name); writes nothing. ConfigError carries all problems.

    `chosen` is for those who compose often: conf.register.merge.
    """
    flags, lines, notes, problems = _split(argv)
    if flags.help:
        return Request(config=None, grid=(), text=_help(lines), overrides=tuple(lines), notes=notes)
    if flags.completion is not None:
        return Request(config=None, grid=(), text=flags.completion, overrides=tuple(lines), notes=notes)
    given, repeated = last_ones(phrases(lines))
    parsed, faults = judge.judge_all(given, multirun=flags.multirun)
    notes = (*notes, *repeated, *judge.overruled(parsed))
    if problems or faults:
        raise ConfigError([*problems, *faults])
    empty = Request(config=None, grid=(), text=None, overrides=tuple(lines), notes=notes)
    if flags.cfg:
        return replace(empty, text=OmegaConf.to_yaml(_merge(parsed)))
    if flags.multirun:
        grid = tuple(_grid(parsed))
        return replace(empty, grid=grid, notes=(*notes, *_decimal_commas(parsed), *_no_list(grid)))
    return replace(empty, config=_to_config(_merge(parsed, chosen)))


def sound_part(argv: Sequence[str]) -> Config | None:
    """The configuration without the faulty overrides, so that what else is wrong can be told with them.

    None when one of them chooses a model, data or machine: the rest would be judged against another choice.
    """
    _, lines, _, _ = _split(argv)
    given, _ = last_ones(phrases(lines))
    sound: list[Phrase] = []
    faulty: list[Phrase] = []
    for phrase in given:
        (faulty if judge.judge_all([phrase], multirun=False)[1] else sound).append(phrase)
    if GROUPS.keys() & {key_of(line) for phrase in faulty for line in phrase.meant}:
        return None
    return _to_config(_merge(judge.judge_all(sound, multirun=False)[0]))


def _split(argv: Sequence[str]) -> tuple[_Flags, list[str], tuple[str, ...], list[Problem]]:
    """Flags apart from overrides."""
    flags, lines, notes, problems = _Flags(), [], [], []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word in ("-m", "--multirun"):
            flags.multirun = True
        elif word in ("-h", "--help"):
            flags.help = True
        elif word in ("-c", "--cfg") or word.startswith("--cfg="):
            flags.cfg = True
            kind = word.partition("=")[2] if "=" in word else (words.pop(0) if words else "")
            if kind != "job":
                problems.append(_cfg_problem(kind))
        elif word in ("-sc", "--shell-completion") or word.startswith("--shell-completion="):
            argument = word.partition("=")[2] if "=" in word else (words.pop(0) if words else "")
            flags.completion, fault = _completion(argument)
            problems += [] if fault is None else [fault]
        elif word.replace("-", "_").startswith("__local_rank"):
            notes.append(
                f"ignored {word}: torch.distributed.launch adds it; torchrun passes the rank in the environment"
            )
        else:
            lines.append(word)
    return flags, lines, tuple(notes), problems


def _completion(argument: str) -> tuple[str | None, Problem | None]:
    from conf.completion import completion  # runs and bills do not pay for it

    return completion(argument, os.environ)


def _help(lines: Sequence[str]) -> str:
    """Of what people use, or of the groups that are named beside the flag."""
    from conf.help_topic import topic_page, topics_in, unknown_topics  # runs and bills do not pay for it

    if problems := unknown_topics(lines):
        raise ConfigError(problems)
    if topics := topics_in(lines):
        return topic_page(topics)
    from conf.help import help_page

    return help_page()


def _cfg_problem(kind: str) -> Problem:
    message = f"--cfg {kind}: only the configuration of this program can be shown".replace("  ", " ")
    return Problem(path="", value="", message=message, fix="--cfg job")


def _merge(parsed: list[Override], chosen: Chosen | None = None) -> DictConfig:
    """Hydra's composition; what still goes wrong lies in a YAML file or in an interpolation."""
    try:
        return merge(parsed, chosen)
    except (HydraException, OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
        raise ConfigError([_yaml_problem(error)]) from error
    except RecursionError as error:
        message = "the defaults lists of the YAML files in conf/ lead back to themselves"
        raise ConfigError([Problem(path="", value="", message=message, fix="take one of them out")]) from error


def _yaml_problem(error: Exception) -> Problem:
    """Hydra tells in a first line where it was, OmegaConf in the next one why."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    key = str(getattr(cause, "full_key", None) or "")
    text = str(getattr(cause, "msg", None) or cause).strip() or type(cause).__name__
    lines = [line.strip() for line in text.splitlines()]
    message = " ".join(lines[:2] if lines[0].endswith(":") else lines[:1])
    place = next((line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")), "")
    message += f" ({place})" if place and not key else ""
    fix = "compare the YAML files in conf/ and the ${...} values with conf/schema.py"
    return Problem(path=key, value="?" if key else "", message=message, fix=fix)


def _to_config(composed: DictConfig) -> Config:
    try:
        return cast("Config", OmegaConf.to_object(composed))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError([_yaml_problem(error)]) from error


def _grid(parsed: list[Override]) -> list[GridRow]:
    """Every combination of the values given, the last one varying fastest."""
    columns = [_values(override) for override in parsed]
    if empty := [_lists_nothing(override) for override, column in zip(parsed, columns, strict=True) if not column]:
        raise ConfigError(empty)
    if prod(map(len, columns)) > MAX_ROWS:
        widest = max(zip(columns, parsed, strict=True), key=lambda pair: len(pair[0]))[1]
        value = str(widest.input_line).partition("=")[2]
        message = f"the grid has more than {MAX_ROWS:,} rows"
        fix = f"fewer values of {widest.key_or_group}"
        raise ConfigError([Problem(path=widest.key_or_group, value=value, message=message, fix=fix)])
    varying = [len(column) > 1 for column in columns]
    rows, problems = [], []
    chosen: Chosen = {}
    for combination in product(*columns):
        row, faults = judge.judge_all([Phrase(typed=line, meant=(line,)) for line in combination], multirun=False)
        problems += [fault for fault in faults if fault not in problems]
        if not faults:
            shown = tuple(line for line, varies in zip(combination, varying, strict=True) if varies)
            rows.append(GridRow(overrides=combination, varying=shown, config=_to_config(_merge(row, chosen))))
    if problems:
        raise ConfigError(problems)
    return rows


def _lists_nothing(override: Override) -> Problem:
    """`model=glob(zz*)`, `seed=range(1,1)`."""
    key, text = override.key_or_group, str(override.input_line).partition("=")[2]
    names = options(key) if key in GROUPS else []
    message = f"nothing matches; there are {', '.join(names)}" if names else "there is no value in it"
    return Problem(path=key, value=text, message=message, fix=f"{key}={','.join(names[:2]) or 'A,B'}")


def _no_list(grid: Sequence[GridRow]) -> list[str]:
    """A single run is not what `-m` is for, so that it is told before it starts."""
    if len(grid) > 1:
        return []
    what = "a single bill" if grid[0].config.dry_run else "a single run"
    return [f"-m, but nothing is listed as in hw=1x4090,8xh100: this is {what}"]


def _decimal_commas(parsed: list[Override]) -> list[str]:
    """A number with a decimal comma is a grid of two to the grammar: what was understood is told."""
    told = []
    for override in filter(Override.is_sweep_override, parsed):
        key, text = override.key_or_group, str(override.input_line).partition("=")[2]
        if (number := with_decimal_point(key, text)) is not None:
            told.append(f"{key}={text} is a grid of 2 values; one number has a point: {key}={number}")
    return told


def _values(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [str(override.input_line)]
    key, value = override.key_or_group, override._value
    if isinstance(value, Glob):
        return [f"{key}={name}" for name in value.filter(options(key) if key in GROUPS else [])]
    if isinstance(value, ChoiceSweep) and isinstance(value.list, Glob):
        return [f"{key}={name}" for name in value.list.filter(options(key) if key in GROUPS else [])]
    return [f"{key}={text}" for text in islice(override.sweep_string_iterator(), MAX_ROWS + 1)]
