"""What a machine snapshot says about a plan. The cards and their numbers are those of public threads where named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from machines import found as _found
from machines import gpu as _gpu
from machines import machine as _machine

from conf.choices import DataKind, TrackingBackend, TrackingMode
from preflight.catalog import find_card
from preflight.checks.check import check
from preflight.hw_plan import CardKind
from preflight.machine.snapshot import World
from preflight.plan import RunPlan
from preflight.verdict.judge import Finding, Severity

GIB = 2**30
MIB = 2**20
MakePlan = Callable[..., RunPlan]


def test_nothing_is_said_when_all_is_well(make_plan: MakePlan):
    assert check(make_plan(card="4090", n_gpus=2), _machine(_gpu(0), _gpu(1))) == ()


# declared against detected


def test_named_cards_on_a_machine_without_gpus(make_plan: MakePlan):
    finding = _found(make_plan(card="4090", n_gpus=4), _machine(), "cards.declared")
    assert finding is not None
    assert (finding.severity, finding.exit_code) == (Severity.error, 4)
    assert finding.message == (
        "hw=4x4090 means 4 x RTX 4090 24 GB (23.5 GiB); this machine has no GPU that can be seen, 16 CPU cores"
    )
    assert finding.fix == "hw=auto, or dry_run=true for the bill alone"


def test_fewer_cards_than_declared_names_the_count_that_is_here(make_plan: MakePlan):
    finding = _found(make_plan(card="4090", n_gpus=4), _machine(_gpu(0), _gpu(1)), "cards.declared")
    assert finding is not None
    assert "2 x NVIDIA GeForce RTX 4090 (23.5 GiB)" in finding.message
    assert finding.fix.startswith("hw=2x4090, hw=auto")


def test_another_card_than_declared(make_plan: MakePlan):
    laptop = _gpu(name="NVIDIA GeForce RTX 4090 Laptop GPU", gib=15.6)
    finding = _found(make_plan(card="4090"), _machine(laptop), "cards.declared")
    assert finding is not None
    assert "RTX 4090 Laptop GPU (15.6 GiB)" in finding.message


def test_less_memory_than_declared(make_plan: MakePlan):
    # karpathy/nanoGPT#61: "V100 32 GB" declared, torch sees 15.78 GiB.
    finding = _found(
        make_plan(card=find_card("v100_32gb")), _machine(_gpu(name="Tesla V100-SXM2-16GB", gib=15.78)), "cards.declared"
    )
    assert finding is not None
    assert "V100 SXM2 32 GB (31.7 GiB)" in finding.message
    assert "15.8 GiB" in finding.message


def test_the_same_name_with_less_memory(make_plan: MakePlan):
    small = _gpu(name="NVIDIA GeForce RTX 3060", gib=7.6)  # the 8 GB variant has the same name
    assert _found(make_plan(card=find_card("3060"), micro_batch_size=1), _machine(small), "cards.declared") is not None


def test_a_mig_slice_is_not_the_card(make_plan: MakePlan):
    piece = _gpu(name="NVIDIA A100-SXM4-40GB MIG 3g.20gb", gib=19.5, mig=True)
    finding = _found(make_plan(card=find_card("a100_40gb")), _machine(piece), "cards.declared")
    assert finding is not None
    assert "MIG 3g.20gb (19.5 GiB)" in finding.message
    detected = make_plan(card="4090", micro_batch_size=1)
    auto = replace(detected, hw=replace(detected.hw, detected=True, declared="auto"))
    assert _found(auto, _machine(piece), "cards.mig") is not None


def test_a_modded_card_with_more_memory_is_an_info(make_plan: MakePlan):
    finding = _found(make_plan(card="4090"), _machine(_gpu(gib=47.4)), "cards.larger")
    assert finding is not None
    assert finding.severity is Severity.info
    assert "47.4 GiB" in finding.message


def test_the_declared_cards_behind_others_must_be_chosen(make_plan: MakePlan):
    machine = _machine(_gpu(0, "NVIDIA GeForce RTX 3060", 11.6), _gpu(1), _gpu(2))
    finding = _found(make_plan(card="4090", n_gpus=2), machine, "cards.declared")
    assert finding is not None
    assert "CUDA_VISIBLE_DEVICES=1,2" in finding.fix


def test_auto_with_more_cards_than_there_are(make_plan: MakePlan):
    plan = make_plan(card="4090", n_gpus=4)
    plan = replace(plan, hw=replace(plan.hw, detected=True, declared="4xauto"))
    assert _found(plan, _machine(_gpu(0), _gpu(1)), "cards.declared") is not None
    assert _found(plan, _machine(*[_gpu(i) for i in range(4)]), "cards.declared") is None


def test_a_custom_card_needs_its_memory_only(make_plan: MakePlan):
    mine = replace(find_card("4090"), name="custom", label="your own card, 24 GiB")
    plan = make_plan(card=mine)
    found = check(plan, _machine(_gpu(name="NVIDIA Something New", gib=24)))
    assert [finding.check for finding in found] == ["cards.custom"]
    assert _found(plan, _machine(_gpu(name="NVIDIA Something New", gib=12)), "cards.declared") is not None


def test_an_apple_card_needs_that_chip(make_plan: MakePlan):
    plan = make_plan(card=find_card("m2max"), micro_batch_size=1)
    assert _found(plan, _machine(), "cards.declared") is not None
    assert _found(plan, _machine(apple_gpu="Apple M1"), "cards.declared") is not None
    here = _machine(apple_gpu="Apple M2 Max")
    assert _found(plan, here, "cards.declared") is None
    assert _found(plan, here, "cards.mps").severity is Severity.warning


def test_a_silent_driver_is_named(make_plan: MakePlan):
    trouble = "the NVIDIA driver does not answer: Driver/library version mismatch"
    finding = _found(make_plan(card="4090"), _machine(gpu_trouble=trouble), "cards.declared")
    assert trouble in finding.message
    on_cpu = _found(make_plan(card="cpu", model="tiny"), _machine(gpu_trouble=trouble), "cards.driver")
    assert on_cpu.severity is Severity.warning


def test_nothing_else_is_said_of_a_machine_that_is_not_the_one(make_plan: MakePlan):
    small = _machine(disk_free_bytes=1, memory_available_bytes=1, n_cpu_cores=1, torch=None, wandb_key=False)
    assert [finding.check for finding in check(make_plan(card="4090", n_gpus=4), small)] == ["cards.declared"]


# cards that are here


def test_mixed_cards_say_what_leaves_the_small_ones_out(make_plan: MakePlan):
    plan = make_plan(card="4090", n_gpus=4, micro_batch_size=1)
    plan = replace(plan, hw=replace(plan.hw, detected=True, declared="auto"))
    big, small = "NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 3060"
    machine = _machine(_gpu(0, big, 23.56), _gpu(1, small, 11.6), _gpu(2, big, 23.56), _gpu(3, small, 11.6))
    finding = _found(plan, machine, "cards.mixed")
    assert finding is not None
    assert "2 x NVIDIA GeForce RTX 3090 24 GiB, 2 x NVIDIA GeForce RTX 3060 12 GiB" in finding.message
    assert "CUDA_VISIBLE_DEVICES=0,2" in finding.fix


def test_memory_held_by_others_stops_instead_of_shrinking_the_plan(make_plan: MakePlan):
    # P100, 12,799 of 16,280 MiB held and nobody listed (a public thread); here with a V100's name.
    card = _gpu(name="Tesla V100-SXM2-16GB", gib=15.78, memory_free_bytes=(16280 - 12799) * MIB)
    finding = _found(make_plan(card=find_card("v100")), _machine(card), "cards.memory_taken")
    assert finding is not None
    assert (finding.severity, finding.exit_code) == (Severity.error, 4)
    assert "GPU 0 has 3.4 GiB of 15.8 GiB free" in finding.message
    assert "held by somebody the driver does not name" in finding.message
    assert "budget.max_memory_fraction=0.21" in finding.fix  # 3,481 / 16,159 MiB


def test_memory_held_by_others_names_them(make_plan: MakePlan):
    card = _gpu(memory_free_bytes=2 * GIB, holders=("pid 4242 (python)",))
    finding = _found(make_plan(card="4090"), _machine(card), "cards.memory_taken")
    assert "held by pid 4242 (python)" in finding.message


def test_memory_held_by_others_is_no_matter_when_the_run_fits_beside_it(make_plan: MakePlan):
    card = _gpu(memory_free_bytes=20 * GIB)
    assert _found(make_plan(card="4090", micro_batch_size=1), _machine(card), "cards.memory_taken") is None


def test_no_ecc_matters_on_long_runs(make_plan: MakePlan):
    long = make_plan(card="4090", n_steps=2_000_000)
    assert _found(long, _machine(), "cards.ecc").severity is Severity.info
    assert _found(make_plan(card="4090", n_steps=100), _machine(), "cards.ecc") is None
    assert _found(make_plan(card="a100_80gb", n_steps=2_000_000), _machine(), "cards.ecc") is None


# data and model


@pytest.mark.parametrize("kind", [DataKind.openwebtext, DataKind.fineweb_edu, DataKind.shakespeare])
def test_data_that_is_not_prepared_stops_here_with_the_command(make_plan: MakePlan, kind: DataKind):
    plan = _with_data(make_plan(card="4090"), kind=kind, prepared=False, dir=f"/data/{kind.name}")
    finding = _found(plan, _machine(_gpu()), "data.prepared")
    assert (finding.severity, finding.exit_code) == (Severity.error, 2)
    own = " --tokenizer gpt2" if kind is DataKind.shakespeare else ""  # the others are made for GPT-2
    assert finding.fix == f"python scripts/prepare_data.py {kind.name} --dir /data{own}"


def test_token_files_of_ones_own_come_from_text_and_the_models_tokenizer(make_plan: MakePlan, tmp_path: Path):
    plan = _with_data(make_plan(card="4090"), kind=DataKind.bin, prepared=False)
    fix = _found(plan, _machine(_gpu()), "data.prepared").fix
    assert fix.startswith("data=text data.path=FILE_OR_FOLDER data.tokenizer=tokenizer.json; ")
    assert "scripts/prepare_data.py hf --path DATASET --tokenizer tokenizer.json" in fix
    assert fix.endswith("data=bin data.path=FOLDER with train.bin and val.bin")
    (tmp_path / "tokenizer.json").touch()
    of_a_folder = replace(plan, model=replace(plan.model, path=str(tmp_path)))
    fix = _found(of_a_folder, _machine(_gpu()), "data.prepared").fix
    assert fix.startswith(f"data=text data.path=FILE_OR_FOLDER (read with {tmp_path}/tokenizer.json); ")


def test_data_that_is_not_prepared_is_a_warning_when_another_machine_trains(make_plan: MakePlan):
    plan = _with_data(make_plan(card="4090", n_gpus=4), kind=DataKind.openwebtext, prepared=False)
    found = check(plan, _machine())
    assert [(finding.check, finding.exit_code) for finding in found] == [("cards.declared", 4), ("data.prepared", 0)]


@pytest.mark.parametrize("kind", [DataKind.stdlib, DataKind.text])
def test_data_that_the_launch_prepares_is_no_finding(make_plan: MakePlan, kind: DataKind):
    plan = _with_data(make_plan(card="4090"), kind=kind, prepared=False, n_train_tokens=None)
    assert _found(plan, _machine(_gpu()), "data.prepared") is None


def test_many_passes_over_little_text(make_plan: MakePlan):
    # 12 x 1024 tokens a step; 1,000 steps are 12,288,000 tokens.
    def epochs(n_train_tokens: int | None) -> Finding | None:
        return _found(_with_data(make_plan(card="4090"), n_train_tokens=n_train_tokens), _machine(), "data.epochs")

    assert epochs(12_288_000) is None
    assert epochs(3_072_000) is None  # exactly four
    assert epochs(1_228_800).severity is Severity.info
    assert epochs(None) is None
    many = epochs(122_880)
    assert many.severity is Severity.warning
    assert "12.3M tokens are 100 passes over the 122,880 of stdlib" in many.message
    assert many.fix == "trainer.n_steps=40"


# money


def test_an_old_price_matters_under_a_money_budget_only(make_plan: MakePlan):
    def price_age(as_of: str, max_cost_usd: float | None = 100.0) -> Finding | None:
        plan = make_plan(card="4090", budget={"max_cost_usd": max_cost_usd})
        plan = replace(plan, hw=replace(plan.hw, offer=replace(plan.hw.offer, as_of=as_of)))
        return _found(plan, _machine(), "money.price_age")

    assert price_age("2026-09-01") is None  # exactly 90 days before 2026-11-30
    assert "91 days old (2026-08-31)" in price_age("2026-08-31").message
    assert price_age("2026-01-01", max_cost_usd=None) is None
    assert price_age("") is None


# the computer around the cards


def test_checkpoints_that_do_not_fit_on_the_disk(make_plan: MakePlan):
    # About 124.5M parameters x 12 B = 1.39 GiB a checkpoint; two kept and one in the making.
    finding = _found(make_plan(card="4090"), _machine(_gpu(), disk_free_bytes=3 * GIB), "host.disk")
    assert (finding.severity, finding.exit_code) == (Severity.error, 4)
    assert "/runs has 3.0 GiB free, 2 checkpoints of 1.4 GiB and one in the making take 4.2 GiB" in finding.message
    assert finding.fix.startswith("trainer.keep_checkpoints=1, or runs_dir=")
    none_fits = _found(make_plan(card="4090"), _machine(_gpu(), disk_free_bytes=1 * GIB), "host.disk")
    assert none_fits.fix == "runs_dir= on a larger volume"


def test_host_memory_that_others_have_taken(make_plan: MakePlan):
    finding = _found(
        make_plan(card="4090", n_gpus=2), _machine(_gpu(0), _gpu(1), memory_available_bytes=GIB), "host.memory"
    )
    assert finding.severity is Severity.warning
    assert "1.0 GiB of 64.0 GiB are free" in finding.message
    on_cpu = _found(make_plan(card="cpu", model="tiny"), _machine(memory_available_bytes=GIB // 16), "host.memory")
    assert "budget.max_memory_fraction" not in on_cpu.fix  # 0.00 would be no override
    plan = make_plan(card="cpu", model="gpt2_124m", micro_batch_size=4)
    assert (
        "budget.max_memory_fraction=0.03" in _found(plan, _machine(memory_available_bytes=2 * GIB), "host.memory").fix
    )


def test_more_ranks_than_cores(make_plan: MakePlan):
    plan = make_plan(card="cpu", model="tiny", n_gpus=4)
    finding = _found(plan, _machine(n_cpu_cores=2), "host.cores")
    assert finding.severity is Severity.warning
    assert "4 ranks share 2 CPU cores" in finding.message
    assert finding.fix == "hw=2xcpu"
    assert _found(plan, _machine(n_cpu_cores=4), "host.cores") is None


@pytest.mark.parametrize(
    ("torch", "said"),
    [("2.13.0", None), ("2.9.0", None), ("2.10.1+cu130", None), (None, "not installed"), ("2.8.1", "older than 2.9")],
)
def test_torch_must_be_there_and_new_enough(make_plan: MakePlan, torch: str | None, said: str | None):
    finding = _found(make_plan(card="4090"), _machine(_gpu(), torch=torch), "software.torch")
    assert (finding is None) is (said is None)
    if finding is not None:
        assert said in finding.message
        assert finding.exit_code == 4
        assert 'pip install "torch>=2.9"' in finding.fix


def test_a_cpu_build_of_torch_cannot_use_gpus(make_plan: MakePlan):
    machine = _machine(_gpu(), torch="2.13.0+cpu")
    assert "built without CUDA" in _found(make_plan(card="4090"), machine, "software.torch").message
    assert _found(make_plan(card="cpu", model="tiny"), machine, "software.torch") is None


def test_several_nodes_need_torchrun(make_plan: MakePlan):
    plan = make_plan(card="4090", n_gpus=2, n_nodes=2, command="python launch.py model=gpt2_124m hw=2x2x4090")
    gpus = (_gpu(0), _gpu(1))
    finding = _found(plan, _machine(*gpus), "launch.nodes")
    assert finding.exit_code == 4
    assert finding.fix == (
        "torchrun --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=box:29500 "
        "launch.py model=gpt2_124m hw=2x2x4090"
    )
    world = World(rank=0, local_rank=0, world_size=4, local_world_size=2)
    assert _found(plan, _machine(*gpus, world=world), "launch.nodes") is None


def test_windows_and_wsl(make_plan: MakePlan):
    two = make_plan(card="4090", n_gpus=2)
    assert _found(two, _machine(_gpu(0), _gpu(1), platform="windows"), "launch.windows").exit_code == 4
    assert _found(make_plan(card="4090"), _machine(_gpu(), platform="windows"), "launch.windows") is None
    spill = _found(make_plan(card="4090"), _machine(_gpu(), platform="wsl"), "host.spill")
    assert spill.severity is Severity.warning
    assert spill.fix == "budget.max_memory_fraction=0.85"
    careful = make_plan(card="4090", budget={"max_memory_fraction": 0.8})
    assert _found(careful, _machine(_gpu(), platform="wsl"), "host.spill") is None


def test_tracking_without_a_key(make_plan: MakePlan):
    def tracking(mode: TrackingMode, key: bool) -> Finding | None:
        plan = make_plan(card="cpu", model="tiny")
        plan = replace(plan, tracking=replace(plan.tracking, backend=TrackingBackend.wandb, mode=mode))
        return _found(plan, _machine(wandb_key=key), "tracking.key")

    assert tracking(TrackingMode.auto, key=True) is None
    assert tracking(TrackingMode.auto, key=False).severity is Severity.info
    assert tracking(TrackingMode.offline, key=False) is None
    assert tracking(TrackingMode.online, key=False).exit_code == 2


def test_findings_come_gravest_first_and_have_exit_codes_only_as_errors(make_plan: MakePlan):
    plan = make_plan(card="4090", n_gpus=2, n_steps=2_000_000, model="gpt2_124m")
    found = check(plan, _machine(_gpu(0), _gpu(1), torch=None, n_cpu_cores=1, disk_free_bytes=GIB))
    severities = [finding.severity for finding in found]
    assert severities == sorted(severities, key=[Severity.error, Severity.warning, Severity.info].index)
    assert len(found) >= 4
    for finding in found:
        assert (finding.exit_code != 0) is (finding.severity is Severity.error)
        assert finding.message


def test_the_bill_of_a_cpu_plan_asks_for_no_card(make_plan: MakePlan):
    plan = make_plan(card="cpu", model="tiny")
    assert plan.hw.card.kind is CardKind.cpu
    assert check(plan, _machine()) == ()


def _with_data(plan: RunPlan, **fields: Any) -> RunPlan:
    return replace(plan, data=replace(plan.data, **fields))
