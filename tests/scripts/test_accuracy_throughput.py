"""Rows of public runs become plans, or say why not; errors, quantiles and the fit by hand-worked cases."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from conf.choices import Family
from preflight.plan import Checkpointing, Precision
from scripts.accuracy_fit import START, estimated_seconds, fit
from scripts.accuracy_rows import Skip
from scripts.accuracy_throughput import measured_step, read_rows, source_of
from scripts.bench_accuracy import main
from scripts.throughput_codes import CODES, LOADER_START_SECONDS, Code, code_of
from scripts.throughput_scores import is_half, judge, quantile, score

ROW = {
    "id": "one", "model": "GPT-2 124M", "params": "124M", "n_layer": "12", "n_head": "12", "d_model": "768",
    "d_ff": "3072", "vocab": "50304", "seq_len": "1024", "micro_batch": "64", "global_batch_tokens": "524288",
    "precision": "bf16", "attention": "flash", "activation_ckpt": "none", "compile": "yes", "parallel": "DDP",
    "n_gpus": "8", "n_nodes": "1", "gpu": "A100-80GB-SXM", "interconnect": "NVLink", "tokens_per_s_total": "1600000",
    "step_ms": "", "mfu_reported": "", "total_hours": "", "total_cost_usd": "", "framework": "torch 2.5.0",
    "source": "https://github.com/someone/trainer/issues/7 (somebody)", "note": "",
}  # fmt: skip
LLAMA = ROW | {
    "model": "Llama-3-8B", "params": "8.03B", "n_layer": "32", "n_head": "32", "d_model": "4096", "d_ff": "14336",
    "vocab": "128256", "micro_batch": "1", "global_batch_tokens": "", "parallel": "FSDP2", "activation_ckpt": "full",
}  # fmt: skip


def write_csv(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows(rows)
    return path


def rows_of_two_sources() -> list[dict[str, str]]:
    speeds = [(8, 1.3e6), (16, 1.4e6), (32, 1.5e6), (64, 1.6e6)]
    return [
        ROW | {"id": f"{source}{size}", "source": source, "micro_batch": str(size), "tokens_per_s_total": str(speed)}
        for source in ("github.com/a/a", "github.com/b/b")
        for size, speed in speeds
    ]


def test_row_becomes_the_plan_it_describes() -> None:
    step = measured_step(ROW)
    assert (step.plan.trainer.micro_batch_size, step.plan.trainer.grad_accum_steps) == (64, 1)
    assert step.plan.hw.world_size == 8
    assert step.plan.hw.card.name == "a100_80gb"
    assert step.plan.trainer.precision is Precision.bf16
    assert step.plan.trainer.compile
    assert step.seconds == pytest.approx(524288 / 1.6e6)
    assert step.source == "someone/trainer"
    assert step.is_nanogpt_like


def test_accumulation_is_what_the_global_batch_leaves() -> None:
    assert measured_step(ROW | {"micro_batch": "16"}).plan.trainer.grad_accum_steps == 4


def test_step_milliseconds_serve_where_no_speed_is_stated() -> None:
    assert measured_step(ROW | {"tokens_per_s_total": "", "step_ms": "250"}).seconds == 0.25


def test_llama_gets_as_many_key_value_heads_as_its_parameters_say() -> None:
    step = measured_step(LLAMA)
    assert step.plan.model.family is Family.llama
    assert step.plan.model.n_kv_head == 8
    assert not step.plan.model.tied_head
    assert step.code.sharded
    assert step.plan.trainer.activation_checkpointing is Checkpointing.full
    assert not step.is_nanogpt_like


def test_stated_parameters_tell_an_untied_head() -> None:
    assert measured_step(ROW).plan.model.tied_head
    assert not measured_step(ROW | {"params": "163M"}).plan.model.tied_head


def test_old_torch_has_the_first_flash_attention() -> None:
    assert measured_step(ROW).code.fused_attention_slowdown == 1.0
    assert measured_step(ROW | {"framework": "composer, torch 1.12"}).code.fused_attention_slowdown == 2.0


def test_unfused_attention_moves_its_scores() -> None:
    fused_softmax = measured_step(ROW | {"attention": "fused softmax (no flash)"}).code
    eager = measured_step(ROW | {"attention": "eager HF"}).code
    assert not fused_softmax.fused_attention
    assert 0 < fused_softmax.score_bytes < eager.score_bytes


RASBT_SOURCE = "https://github.com/rasbt/LLMs-from-scratch/blob/main/ch05/10_llm-training-speed/README.md"


def test_first_script_that_fits_says_what_a_row_does_not() -> None:
    one, four = (measured_step(ROW | {"source": RASBT_SOURCE, "micro_batch": "32", **more})
                 for more in ({"parallel": "none", "n_gpus": "1", "global_batch_tokens": ""}, {}))  # fmt: skip
    assert (one.facts.n_timed_steps, four.facts.n_timed_steps) == (10, 5)
    assert one.plan.model.dropout == 0.1
    assert one.plan.trainer.precision is Precision.bf16_pure
    assert is_half(one)
    assert not one.code.compiles_loss


def test_code_base_that_nobody_read_drops_nothing_and_times_steps_alone() -> None:
    assert measured_step(ROW).facts == Code() == code_of("someone/trainer", ROW)


def test_dropout_adds_to_the_traffic_of_written_out_scores() -> None:
    row = ROW | {"attention": "fused softmax (no flash)", "source": "https://github.com/VIA-Research/vTrain data"}
    assert measured_step(row).code.score_bytes == 20 + 10
    assert measured_step(row | {"source": "github.com/a/a"}).code.score_bytes == 20


def test_evaluations_inside_the_clock_are_shared_out_over_its_steps() -> None:
    step = measured_step(ROW)
    timed = replace(step, facts=Code(n_timed_steps=4, n_timed_loader_starts=2))
    assert estimated_seconds(timed) - estimated_seconds(step) == pytest.approx(2 * LOADER_START_SECONDS / 4)
    evaluating = replace(step, facts=Code(n_timed_steps=1, n_timed_forwards=3))
    assert 1.9 * estimated_seconds(step) < estimated_seconds(evaluating) < 2 * estimated_seconds(step)


def test_scripts_of_a_code_base_name_columns_of_the_table() -> None:
    assert all(set(code.fits) <= set(ROW) for codes in CODES.values() for code in codes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": "TITAN Xp"}, "card not in the catalog: TITAN Xp"),
        ({"n_layer": ""}, "not stated: n_layer"),
        ({"micro_batch": ""}, "not stated: micro_batch"),
        ({"precision": ""}, "not stated: precision"),
        ({"precision": "fp8+bf16"}, "fp8 is not modelled"),
        ({"note": "SOAP optimizer"}, "optimizer with arithmetic of its own: SOAP"),
        ({"note": "NON-VANILLA architecture"}, "another architecture"),
        ({"model": "BERT-Large"}, "another architecture"),
        ({"parallel": "ZeRO-3 + CPU offload"}, "offload and context parallelism are not modelled"),
        ({"tokens_per_s_total": ""}, "no speed stated for a step of known size"),
    ],
)
def test_row_without_what_is_needed_is_skipped_with_the_reason(change: dict[str, str], reason: str) -> None:
    with pytest.raises(Skip, match=reason):
        measured_step(ROW | change)


def test_source_is_the_code_base() -> None:
    assert source_of(ROW) == "someone/trainer"
    assert source_of(ROW | {"source": "a README (2024)"}) == "a README"


def test_skipped_rows_are_counted_by_reason(tmp_path: Path) -> None:
    steps, skipped = read_rows(write_csv(tmp_path / "rows.csv", [ROW, ROW | {"vocab": "", "n_layer": ""}]))
    assert len(steps) == 1
    assert skipped == {"not stated: n_layer": 1}


def test_quantile_weighs_its_values() -> None:
    assert quantile([(3.0, 1.0), (1.0, 1.0), (2.0, 1.0)], 0.5) == 2.0
    assert quantile([(3.0, 5.0), (1.0, 1.0), (2.0, 1.0)], 0.5) == 3.0


def test_score_of_an_estimate_that_is_ten_percent_high() -> None:
    step = measured_step(ROW)
    slow = measured_step(ROW | {"tokens_per_s_total": str(524288 / (estimated_seconds(step) / 1.1))})
    result = score(judge([slow], leave_one_source_out=False, calibrated=False))
    assert result.median_signed_error == pytest.approx(0.1)
    assert result.coverage == 1.0


def test_one_run_calibrates_the_others_of_its_code_and_card(tmp_path: Path) -> None:
    """Two runs whose errors agree judge each other without any."""
    exact = estimated_seconds(measured_step(ROW))
    twice = [
        measured_step(ROW | {"id": name, "tokens_per_s_total": str(524288 / (2 * exact))}) for name in ("one", "two")
    ]
    assert score(judge(twice, leave_one_source_out=False, calibrated=True)).median_absolute_error < 1e-9


def test_fit_finds_the_constant_that_made_the_rows() -> None:
    truth = replace(START, sustained_fraction=0.7)
    steps = [measured_step(row) for row in rows_of_two_sources()]
    made = [replace(step, seconds=estimated_seconds(step, truth)) for step in steps]
    found = fit(made)
    error = max(abs(estimated_seconds(step, found) / step.seconds - 1) for step in made)
    assert error < 0.1 < abs(estimated_seconds(made[-1], START) / made[-1].seconds - 1)


@pytest.mark.parametrize("options", [[], ["--leave-one-source-out"], ["--calibrated"]])
def test_bench_prints_one_json_document(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "rows.csv", [*rows_of_two_sources(), ROW | {"gpu": "TITAN Xp"}])
    assert main(["--throughput", str(path), "--json", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["overall"]["n_used"] == 8
    assert document["overall"]["n_skipped"] == 1
    assert set(document["by_source"]) == {"a/a", "b/b"}
    assert document["skipped"] == {"card not in the catalog: TITAN Xp": 1}
    assert {"median_absolute_error", "p90_absolute_error", "median_signed_error", "coverage"} <= set(
        document["overall"]
    )


def test_bench_prints_a_line_a_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--throughput", str(write_csv(tmp_path / "rows.csv", rows_of_two_sources()))])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("a/a") for line in lines)
    assert any("nanoGPT-like" in line for line in lines)


@pytest.mark.parametrize("arguments", [["--memory", "x.csv", "--calibrated"], ["--throughput", "x.csv", "--rows"], []])
def test_bench_refuses_options_of_the_other_measurement(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
