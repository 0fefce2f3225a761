"""What is not part of every installation stops a run by its name, never a bill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from resolving import LAPTOP

from conf.choices import Adapter, Optimizer
from preflight.checks.extras import judge_packages, judge_start
from preflight.machine.surroundings import NOTHING_KNOWN
from preflight.plan import RunPlan
from preflight.verdict.judge import Severity


@pytest.mark.parametrize(
    ("trainer", "needed", "fix"),
    [
        ({"optimizer": Optimizer.adamw_8bit}, "bitsandbytes", "trainer.optimizer=adafactor"),
        ({"adapter": Adapter.qlora}, "bitsandbytes", "trainer.adapter=lora"),
        ({"init_from": "hf:/weights"}, "safetensors", "preflight[hf]"),
    ],
)
def test_missing_package_is_named_with_its_command(
    make_plan: Callable[..., RunPlan], trainer: dict[str, Any], needed: str, fix: str
):
    plan = make_plan(trainer=trainer)
    (finding,) = judge_packages(plan, LAPTOP)
    assert (finding.check, finding.exit_code) == (f"software.{needed}", 4)
    assert "pip install" in finding.fix
    assert fix in finding.fix
    installed = replace(LAPTOP, around=replace(NOTHING_KNOWN, bitsandbytes="0.50", safetensors="0.8"))
    assert not list(judge_packages(plan, installed))
    assert not list(judge_packages(make_plan(), LAPTOP))


def test_text_that_the_run_prepares_needs_what_reads_it(make_plan: Callable[..., RunPlan]):
    text: dict[str, Any] = {"prepared": False, "source_path": "/t", "n_source_bytes": None, "tokenizer_path": "/t.json"}
    asked = make_plan()
    plan = replace(asked, data=replace(asked.data, **text))
    found = list(judge_packages(plan, LAPTOP))
    assert [finding.check for finding in found] == ["software.pyarrow", "software.tokenizers"]
    assert {finding.fix for finding in found} == {"pip install 'preflight[data]'"}
    installed = replace(LAPTOP, around=replace(NOTHING_KNOWN, pyarrow="15", tokenizers="0.19"))
    assert not list(judge_packages(plan, installed))
    assert not list(judge_packages(replace(plan, data=replace(plan.data, prepared=True)), LAPTOP))


def test_adapters_need_weights_to_start_from(make_plan: Callable[..., RunPlan]):
    (elsewhere,) = judge_start(make_plan(trainer={"adapter": Adapter.lora}), is_here=False)
    assert elsewhere.severity is Severity.warning
    (finding,) = judge_start(make_plan(trainer={"adapter": Adapter.lora}), is_here=True)
    assert (finding.check, finding.exit_code) == ("trainer.init_from", 2)
    assert not list(judge_start(make_plan(trainer={"adapter": Adapter.lora, "init_from": "hf:/weights"}), is_here=True))
