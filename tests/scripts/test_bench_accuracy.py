"""Rows of a table of measurements become workloads, or are skipped with the reason."""

import csv
import json

import pytest

from preflight.memory.peak import estimate_workload
from preflight.units import GIB
from scripts.accuracy_memory import measured_memory
from scripts.accuracy_rows import Skip
from scripts.bench_accuracy import main

COLUMNS = [
    "id", "model", "params", "n_layer", "n_head", "n_kv_head", "d_model", "d_ff", "vocab", "seq_len", "micro_batch",
    "precision", "attention", "activation_ckpt", "compile", "optimizer", "parallel", "n_gpus", "gpu", "peak_mem_gib",
    "oom", "framework", "source", "note", "measured_kind",
]  # fmt: skip
GPT2 = {
    "id": "1", "model": "GPT-2", "params": "124373760", "n_layer": "12", "n_head": "12", "d_model": "768",
    "d_ff": "3072", "vocab": "50304", "seq_len": "1024", "micro_batch": "12", "precision": "bf16-autocast",
    "attention": "sdpa", "compile": "0", "optimizer": "AdamW fused", "parallel": "single", "n_gpus": "1",
    "gpu": "A100-80GB", "peak_mem_gib": "11.3", "framework": "PyTorch", "source": "someone/something README",
    "measured_kind": "allocated",
}  # fmt: skip


def row(**changes):
    return dict.fromkeys(COLUMNS, "") | GPT2 | changes


def allocated_gib(**changes):
    one = measured_memory(row(**changes))
    return estimate_workload(one.plan, one.work).allocated.mid / GIB


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"measured_kind": "kernel_only"}, "not a training peak"),
        ({"seq_len": ""}, "not stated: seq_len"),
        ({"note": "Adapter v2"}, "not modelled: adapters other than LoRA"),
        ({"precision": "fp8 mixed"}, "not modelled: 8-bit and 4-bit arithmetic"),
        ({"note": "FSDP 32 TP 8"}, "not modelled: tensor, context or pipeline parallelism, offloaded activations"),
        ({"optimizer": "Lion"}, "not modelled: this optimizer"),
        ({"framework": "somebody's", "compile": ""}, "not stated: compile"),
        ({"params": "60000000"}, "not modelled: an architecture with another parameter count"),
        ({"peak_mem_gib": "1.5"}, "contradicts itself: less than weights, gradients and the stated optimizer's states"),
        ({"gpu": "some card", "measured_kind": "oom", "peak_mem_gib": ""}, "not stated: the card's memory"),
    ],
)
def test_measured_memory_skips_and_says_why(changes, reason):
    with pytest.raises(Skip, match=f"^{reason}$"):
        measured_memory(row(**changes))


def test_measured_memory_of_code_like_ours_is_our_own_estimate():
    assert allocated_gib() == pytest.approx(11.252, abs=0.001)


def test_measured_memory_reads_what_the_code_does_from_framework_and_note():
    n_tokens, width, n_layer = 12 * 1024, 768, 12
    kept = allocated_gib(framework="nanoGPT") - allocated_gib()
    assert kept * GIB == pytest.approx(2 * 50304 * n_tokens)  # `logits, loss = model(X, Y)`
    eager = allocated_gib(attention="eager") - allocated_gib()
    assert eager * GIB == pytest.approx(n_layer * 12 * n_tokens * (6 * 1024 - 4))  # 6 a T in place of the log-sum-exp
    written_out = allocated_gib(note="hand-written LayerNorm/GELU") - allocated_gib()
    assert written_out * GIB == pytest.approx(n_tokens * width * (n_layer * (2 * 8 + 3 * 8) + 8))


def test_measured_memory_takes_the_card_a_row_states():
    one = measured_memory(row(gpu="24GB (23.68 GiB)", measured_kind="oom", peak_mem_gib=""))
    assert one.plan.hw.card.memory_bytes == int(23.68 * GIB)
    assert one.measured_bytes is None


def test_measured_memory_of_adapters_shards_and_8_bit_states_is_smaller():
    assert allocated_gib(note="LoRA r8 q,v", peak_mem_gib="") < allocated_gib(peak_mem_gib="") - 1.0
    assert allocated_gib(parallel="fsdp", n_gpus="8", framework="torchtitan", peak_mem_gib="") < allocated_gib()
    assert allocated_gib(optimizer="AdamW8bit", peak_mem_gib="") < allocated_gib() - 0.6


def test_measured_memory_is_what_the_note_says_it_is():
    one = measured_memory(row(note="active 11571 MiB, reserved 13198 MiB", measured_kind="reserved"))
    assert one.kind == "allocated"  # 11571 MiB are the 11.3 GiB


def write_table(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def test_bench_accuracy_counts_errors_false_fits_and_skips(tmp_path, capsys):
    table = tmp_path / "measured.csv"
    write_table(
        table,
        [
            row(id="1"),
            row(id="2", peak_mem_gib="22.5", measured_kind="allocated"),
            row(id="3", gpu="24GB (23.68 GiB)", peak_mem_gib="", measured_kind="oom"),  # said to fit
            row(id="4", gpu="8GB (7.79 GiB)", peak_mem_gib="", measured_kind="ran"),  # said not to fit
            row(id="5", optimizer="Lion"),
        ],
    )
    assert main(["--memory", str(table), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    overall = document["overall"]
    assert (overall["n_used"], overall["n_skipped"], overall["n_peaks"]) == (4, 1, 2)
    assert overall["median_absolute_error"] == pytest.approx((0.5 + 11.3 / 11.252 - 1) / 2, abs=0.002)
    assert overall["coverage"] == 0.5  # twice as much is in no band
    assert (overall["false_fits"], overall["false_refusals"]) == (1, 1)
    assert document["skipped"] == {"not modelled: this optimizer": 1}
    assert set(document["by_source"]) == {"someone/something"}
    assert main(["--memory", str(table), "--rows"]) == 0
    assert "someone/something" in capsys.readouterr().out
