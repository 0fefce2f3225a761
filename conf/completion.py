"""Shell completion: `eval "$(python launch.py --shell-completion install=bash)"`, zsh and fish alike.

The shell asks with what was typed so far; options, choices, cards and true or false are offered. Names of files are
left to the shell.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path

from conf import names
from conf.help import COMMON
from conf.register import GROUPS, options
from preflight.catalog import card_names
from preflight.errors import Problem
from preflight.resolve.texts import RUNG_LISTS, RUNGS

FLAGS = ("--help", "--multirun", "--cfg", "--shell-completion")
SHELLS = ("bash", "zsh", "fish")
HW = "hw"
LAUNCH = Path(__file__).resolve().parents[1] / "launch.py"

BASH = """\
_preflight() {{
    if [[ "$COMP_LINE" != *launch.py* ]]; then compopt -o default; COMPREPLY=(); return; fi
    local IFS=$'\\n' word="${{COMP_LINE:0:$COMP_POINT}}"
    word="${{word##* }}"
    COMPREPLY=($(COMP_LINE="${{COMP_LINE:0:$COMP_POINT}}" {python} {launch} --shell-completion query=bash 2>/dev/null))
    [[ "$word" == *=* && "$COMP_WORDBREAKS" == *=* ]] && COMPREPLY=("${{COMPREPLY[@]#"${{word%"${{word##*=}}"}}"}}")
    [[ "${{COMPREPLY[0]}}" == *= || "$word" == *=* ]] && compopt -o nospace
    [[ ${{#COMPREPLY[@]}} == 0 ]] && compopt -o default
}}
complete -F _preflight launch.py ./launch.py python python3 torchrun
"""
ZSH = "autoload -U +X compinit && compinit -u\nautoload -U +X bashcompinit && bashcompinit\n"
FISH = """\
function __preflight; env COMP_LINE=(commandline -cp | string collect) {python} {launch} \
--shell-completion query=fish 2>/dev/null; end
for name in launch.py python python3 torchrun
    complete -c $name -n 'string match -q "*launch.py*" (commandline -cp)' -f -a '(__preflight)'
end
"""


def completion(argument: str, environment: Mapping[str, str]) -> tuple[str | None, Problem | None]:
    """The text to print, or what is wrong with the flag."""
    verb, _, shell = argument.partition("=")
    if verb not in ("install", "query") or shell not in SHELLS:
        message = f"--shell-completion {argument}: takes install=bash, install=zsh or install=fish".replace("  ", " ")
        fix = 'eval "$(python launch.py --shell-completion install=bash)"'
        return None, Problem(path="", value="", message=message, fix=fix)
    if verb == "query":
        return "\n".join(candidates(environment.get("COMP_LINE", ""))), None
    script = {"bash": BASH, "zsh": ZSH + BASH, "fish": FISH}[shell]
    return script.format(python=sys.executable, launch=LAUNCH).rstrip("\n"), None


def candidates(line: str) -> list[str]:
    """Whole words that may stand where the last one of the line is being typed."""
    typed = line.partition("launch.py")[2]
    word = "" if not typed or typed[-1].isspace() else typed.split()[-1]
    if word.startswith("-"):
        return [flag for flag in FLAGS if flag.startswith(word)]
    key, equals, value = word.partition("=")
    if equals:
        before = value[: value.rfind(",") + 1].lstrip("[") if "," in value else ""
        opened = "[" if value.startswith("[") else ""
        current = value[len(opened) + len(before) :]
        return [f"{key}={opened}{before}{each}" for each in _values(key, current) if each.startswith(current)]
    # An empty word shows what people use; a beginning shows everything that begins so.
    groups = [name for name in GROUPS if len(options(name)) > 1]  # of the others only the options are set
    known = [*groups, *(names.all_options() if word else COMMON)]
    return [f"{name}=" for name in known if name.startswith(word)]


def _values(key: str, current: str) -> Iterator[str]:
    if key == HW:
        counts = re.match(r"(?:\d+x){0,2}", current)
        prefix = counts[0] if counts else ""
        yield from options(HW) if not prefix else ()
        yield from (prefix + name for name in card_names())
        return
    if key in GROUPS:
        yield from options(key)
        return
    if key in RUNG_LISTS:
        yield from RUNGS
        return
    hint = names.hint_of(key)
    kind, may_be_null = names.without_none(hint) if hint is not None else (None, False)
    if kind is bool:
        yield from ("true", "false")
    elif isinstance(kind, type) and issubclass(kind, Enum):
        yield from (member.name for member in kind)
    if may_be_null and kind is not str:
        yield "null"
