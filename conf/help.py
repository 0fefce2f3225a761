"""The help page: the options people use, what they take, and commands to copy."""

from __future__ import annotations

from textwrap import fill

from conf import names
from conf.register import options

# Path -> what it does, in the order in which people meet them. What each takes and its default come from the schema.
COMMON = {
    "trainer.micro_batch_size": "sequences per GPU per pass",
    "trainer.tokens_per_step": "global batch, in tokens; accumulation follows",
    "trainer.sequence_length": "tokens per sequence",
    "trainer.n_steps": "length of the run, or total_tokens",
    "trainer.total_tokens": "length of the run in tokens, 1e9 or 10B too",
    "trainer.precision": "",
    "trainer.compile": "torch.compile",
    "trainer.activation_checkpointing": "recompute activations",
    "trainer.learning_rate": "",
    "hw.price_usd_per_hour": "your own price of one machine",
    "data.path": "of your text (data=text) or token files (data=bin)",
    "budget.max_hours": "",
    "budget.max_cost_usd": "",
    "budget.deadline": "when it must be done, 2026-12-24T18:00",
    "budget.max_memory_fraction": "of the card's memory",
    "budget.enforce": "when a run comes to a budget (stop saves first)",
    "lowering.policy": "what to do when over a budget",
    "lowering.keep": "what stays: batch, precision, model",
    "lowering.allow_model": "a smaller model may be chosen",
    "lowering.raise_batch": "take a larger batch where it is faster",
    "lowering.show": "what each lowering would save",
    "tracking.notes": "a word on this run",
    "dry_run": "the bill only",
    "report": "",
    "action": "",
    "compare.by": "what the offers are ranked by",
    "calibrate.max_seconds": "of action=calibrate",
    "name": "part of the run folder's name",
    "runs_dir": "where runs and the ledger are kept",
    "resume": "a run folder, or latest: continue it",
    "plan": "a plan.json to replay",
    "seed": "",
}

WIDTH = 100  # columns

HEAD = """\
preflight: the bill of a training run first, then the run.

  python launch.py                                          train a small model on this machine
  python launch.py model=gpt2_124m hw=4x4090 dry_run=true   the bill of a machine that is not here
  python launch.py model=gpt2_124m hw=4x4090                the bill, then the run
  python launch.py -m model=gpt2_124m,gpt2_350m hw=1x4090,8xh100 dry_run=true      a grid of bills
  python launch.py model=gpt2_124m action=compare           the same on every card and offer, ranked
  torchrun --nproc_per_node=4 launch.py model=gpt2_124m     when torchrun is already in charge

Options are KEY=VALUE, without dashes and without spaces round the =; the last of a KEY counts.

Choices (GROUP=NAME)
"""

TAIL = """
Every option: --help budget, or another GROUP, or all, explains them; --cfg job prints their values.
Flags: -h --help, -m --multirun (a,b are several values, grid.csv=FILE keeps the rows), --cfg job.
Completion: eval "$(python launch.py --shell-completion install=bash)"   (or zsh; fish: | source)
Exit codes: 0 done or go, 2 configuration or data, 3 over budget, 4 wrong machine, 5 failed,
6 stopped at the budget, 130/143 interrupted; a checkpoint is saved in both.
"""


def help_page() -> str:
    """At most a screen and a half."""
    groups = [_group(group) for group in ("model", "data", "tracking", "experiment")]
    groups.insert(1, "  hw=4x4090 (cards), 2x8xh100 (nodes x cards), auto (this machine: the default), cpu, 2xcpu")
    values = [_line(path, what) for path, what in COMMON.items()]
    return HEAD + "\n".join(groups) + "\n\nOptions\n" + "\n".join(values) + "\n" + TAIL


def _group(group: str) -> str:
    indent = " " * (len(group) + 3)
    return fill(f"  {group}={', '.join(options(group))}", width=WIDTH, subsequent_indent=indent)


def _line(path: str, what: str) -> str:
    return f"  {path:33} {what + ': ' if what else ''}{takes(path)}"


def takes(path: str) -> str:
    """What may stand right of the `=`, and what stands there when it is not given."""
    hint, default = names.all_options()[path]
    known = names.describe(hint).removesuffix(", or null").removeprefix("one of ")
    shown = getattr(default, "name", default)
    return known + ("" if shown in (None, "", False) else f", default {shown}")
