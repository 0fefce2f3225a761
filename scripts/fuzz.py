"""Random command lines: no traceback, no hang, a documented exit code, every problem at once?

python scripts/fuzz.py --plans 1000 --mutants 1000          about four minutes on two cores

`--plans`: valid lines, each worked out to a verdict (exit code 0 or 3, or 2 where a value does not suit the others).
`--mutants`: the same with one to three faults - misspelt names, values of the wrong kind or out of range, lost quotes,
dashes, spaces - each answered with exit code 2 and every fault (a fault may happen to be valid: then 0 or 3). Prints
the slowest and every line that broke the rules.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from conf import names
from conf.register import options
from launcher.decide import answer
from preflight.catalog import card_names

DOCUMENTED = (0, 2, 3)  # of dry runs
SLOW_SECONDS = 5.0
FAULT_WORDS = ("a fault of preflight", "Traceback")


class Told(NamedTuple):
    """What a line came to."""

    line: list[str]
    code: int
    seconds: float
    out: str
    err: str


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every line kept the rules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=1000)
    parser.add_argument("--mutants", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1337)
    asked = parser.parse_args(arguments)
    chance = random.Random(asked.seed)
    valid = [run(valid_line(chance)) for _ in range(asked.plans)]
    faulty = [(n_faults, run(line)) for n_faults, line in (mutant(chance) for _ in range(asked.mutants))]
    broken = [(told, why) for told in valid if (why := fault_of_valid(told))]
    broken += [(told, why) for n_faults, told in faulty if (why := fault_of_mutant(told, n_faults))]
    report("valid plans", valid)
    report("mutants", [told for _, told in faulty])
    for told, why in broken:
        sys.stdout.write(f"BROKEN {why}: {' '.join(told.line)}\n{told.err[-600:]}\n")
    return 1 if broken else 0


def run(line: list[str]) -> Told:
    """One dry run in this process."""
    out, err = io.StringIO(), io.StringIO()
    begin = time.perf_counter()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = int(answer(line).exit_code)
    return Told(line, code, time.perf_counter() - begin, out.getvalue(), err.getvalue())


def report(what: str, told: Sequence[Told]) -> None:
    """Counts and the slowest."""
    if told:
        codes = ", ".join(f"{code}: {n}" for code, n in sorted(Counter(each.code for each in told).items()))
        slowest = max(told, key=lambda each: each.seconds)
        line = " ".join(slowest.line)
        sys.stdout.write(f"{len(told)} {what}, exit codes {codes}; slowest {1e3 * slowest.seconds:.0f} ms: {line}\n")


def fault_of_valid(told: Told) -> str:
    """ "" when a bill or a refusal was worked out; what does not divide or fit the card is a configuration error."""
    common = _common_fault(told)
    if common or told.code != 2:
        return common
    return "" if "To fix:" in told.err or '"fix"' in told.out else "an error without a fix"


def fault_of_mutant(told: Told, n_faults: int) -> str:
    """Every problem has a fix, in text and in JSON."""
    common = _common_fault(told)
    if common or told.code != 2:
        return common
    if any("report=json" in word for word in told.line) and told.out.strip():
        problems = json.loads(told.out)["problems"]
        return "" if problems and all(p["message"] for p in problems) else "no problem in the document"
    return "" if "To fix:" in told.err or "fix" in told.err else f"{n_faults} faults and no fix"


def _common_fault(told: Told) -> str:
    if told.code not in DOCUMENTED:
        return f"exit code {told.code}"
    if any(word in told.out + told.err for word in FAULT_WORDS):
        return "a fault of our own"
    return f"{told.seconds:.1f} s" if told.seconds > SLOW_SECONDS else ""


def valid_line(chance: random.Random) -> list[str]:
    """Values that are allowed each alone; together they may be too much, which a verdict says."""
    machine = f"{chance.choice(('', '', '2x', '16x'))}{chance.choice((1, 2, 4, 8))}x{chance.choice(card_names()[:-4])}"
    model = chance.choice([name for name in options("model") if name != "hf"])
    line = [f"model={model}", f"hw={chance.choice((machine, machine, machine, 'cpu', '2xcpu'))}", "dry_run=true"]
    extras: list[Callable[[], str]] = [
        lambda: f"trainer.precision={chance.choice(('auto', 'auto', 'fp32'))}",
        lambda: f"trainer.micro_batch_size={chance.choice((1, 2, 4, 8, 16, 64))}",
        lambda: f"trainer.total_tokens={chance.choice(('1e8', '10B', '3e11'))}",
        lambda: f"trainer.activation_checkpointing={chance.choice(('none', 'selective', 'full'))}",
        lambda: f"trainer.compile={chance.choice(('true', 'false'))}",
        lambda: f"budget.max_hours={chance.choice(('null', '1', '48', '1000'))}",
        lambda: f"budget.max_cost_usd={chance.choice(('null', '1', '500'))}",
        lambda: f"budget.max_energy_kwh={chance.choice(('null', '0.1', '500'))}",
        lambda: f"budget.max_memory_fraction={chance.choice(('0.3', '0.95', '1'))}",
        lambda: f"budget.max_disk_gib={chance.choice(('null', '1', '5000'))}",
        lambda: f"budget.judge_on={chance.choice(('mid', 'high'))}",
        lambda: f"lowering={chance.choice(('default', 'all'))}",
        lambda: f"lowering.policy={chance.choice(('auto', 'refuse', 'off'))}",
        lambda: f"lowering.allow_model={chance.choice(('true', 'false'))}",
        lambda: f"lowering.raise_batch={chance.choice(('true', 'false'))}",
        lambda: f"lowering.show={chance.choice(('refused', 'ladder'))}",
        lambda: f"lowering.keep=[{chance.choice(('', 'batch', 'precision', 'model'))}]",
        lambda: f"report={chance.choice(('text', 'full', 'json'))}",
    ]
    return line + [extra() for extra in chance.sample(extras, chance.randrange(0, 7))]


NONSENSE = (
    "",
    "-1",
    "0",
    "1e99",
    "nan",
    "abc",
    "[a,b]",
    "{a: 1}",
    "'",
    "true",
    "null",
    "4x",
    "\u00e9",
    "10BB",
    "1;2",
    "~/x",
    "${seed}",
)


def mutant(chance: random.Random) -> tuple[int, list[str]]:
    """A line with one to three faults of the kinds that people make."""
    line, n_faults = valid_line(chance), chance.randrange(1, 4)
    known = list(names.all_options())
    for _ in range(n_faults):
        place, kind = chance.randrange(len(line)), chance.randrange(8)
        key, _, value = line[place].partition("=")
        if kind == 0:
            line.append(f"{chance.choice(known)}={chance.choice(NONSENSE)}")
        elif kind == 1:
            line[place] = f"{_misspelt(chance, key)}={value}"
        elif kind == 2:
            line[place] = f"{key}={_misspelt(chance, value)}"
        elif kind == 3:
            line[place] = f"--{line[place]}"
        elif kind == 4:
            line[place : place + 1] = [key, "=", value]
        elif kind == 5:
            line.append(chance.choice(NONSENSE))
        elif kind == 6:
            line[place] = f"{key}={chance.choice(NONSENSE)}"
        else:
            line.append(f"{chance.choice(('+', '~', '++'))}{chance.choice(known)}=1")
    return n_faults, [word for word in line if "plan=" not in word and "resume=" not in word and "dir" not in word] + [
        "dry_run=true"
    ]


def _misspelt(chance: random.Random, word: str) -> str:
    if len(word) < 2:
        return word + "x"
    place = chance.randrange(len(word) - 1)
    return word[:place] + word[place + 1] + word[place] + word[place + 2 :]


if __name__ == "__main__":
    from scripts.ending import ended

    sys.exit(ended(main))
