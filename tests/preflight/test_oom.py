"""Messages as people posted them; each names its public thread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from resolving import resolved

from preflight.memory.peak import estimate_memory
from preflight.oom import Cause, explain, explanation_text
from preflight.oom_message import read_message
from preflight.units import GIB, MIB

NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {ask}. GPU 0 has a total capacity of {total} GiB "
    "of which {free} is free. Including non-PyTorch memory, this process has {process} GiB memory in use. Of the "
    "allocated memory {alive} GiB is allocated by PyTorch, and {empty} GiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate {ask} (GPU 0; {total} GiB total capacity; {alive} GiB already "
    "allocated; {free} free; {reserved} GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try"
)
# overrides, message, factor x bytes of the logits in it
LOGITS = {
    "github.com/karpathy/nanoGPT/issues/88": (
        ("model=gpt2_124m", "hw=t4", "trainer.micro_batch_size=32", "trainer.precision=fp32"),
        OLD.format(ask="6.14 GiB", total=15.78, alive=10.16, free="4.45 GiB", reserved=10.2),
        "32 x 1,024 x 50,304", "fp32",
    ),
    "github.com/karpathy/nanochat/issues/443": (
        ("model=gpt2_350m", "model.n_head=10", "model.n_embd=1280", "hw=h100",
         "model.vocab_size=65536", "trainer.sequence_length=2048",
         "trainer.micro_batch_size=32", "trainer.tokens_per_step=65536"),
        NEW.format(ask="8.00 GiB", total=79.19, free="6.68 GiB", process=72.48, alive=71.0, empty=0.9),
        "32 x 2,048 x 65,536", "16 bit",
    ),
    "github.com/huggingface/transformers/issues/1819": (
        ("model=gpt2_124m", "hw=3060", "model.vocab_size=50257", "trainer.micro_batch_size=1"),
        "RuntimeError: CUDA out of memory. Tried to allocate 198.00 MiB (GPU 0; 5.93 GiB total capacity; 4.64 GiB "
        "already allocated; 54.94 MiB free; 233.05 MiB cached)",
        "1 x 1,024 x 50,257", "fp32",
    ),
    "github.com/Lightning-AI/litgpt/issues/684": (
        ("model=llama_7b", "hw=8xa100_40gb", "model.vocab_size=64000", "trainer.micro_batch_size=1"),
        OLD.format(ask="1000.00 MiB", total=39.59, alive=36.11, free="500.19 MiB", reserved=37.95),
        "1 x 4,096 x 64,000", "fp32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("thread", LOGITS)
def test_explain_finds_the_logits_of_public_threads(thread):
    overrides, text, shape, width = LOGITS[thread]
    explanation = explain(text, resolved(*overrides))
    assert explanation is not None
    tensor = explanation.tensors[0]  # a 7B model with T = C has an embedding of the same size
    assert tensor.name == f"the logits or their gradient in {width}"
    assert tensor.shape == f"B x T x V = {shape}"
    assert shape in explanation_text(explanation)


def test_message_of_today_gives_every_number():
    message = read_message(
        NEW.format(ask="250.00 MiB", total=79.26, free="79.69 MiB", process=79.17, alive=74.77, empty=3.87)
    )
    assert message is not None
    assert (message.requested_bytes, message.device) == (250 * MIB, "cuda")
    assert message.total_bytes == pytest.approx(79.26 * GIB)
    assert message.free_bytes == pytest.approx(79.69 * MIB, rel=1e-6)
    assert message.unallocated_bytes == pytest.approx(3.87 * GIB)
    assert message.others_bytes == pytest.approx((79.26 - 79.17) * GIB - 79.69 * MIB, abs=1e4)


def test_enough_that_is_reserved_and_empty_is_fragmentation():  # github.com/pytorch/pytorch/issues/152135
    text = NEW.format(ask="250.00 MiB", total=79.26, free="79.69 MiB", process=79.17, alive=74.77, empty=3.87)
    explanation = explain(text)
    assert explanation is not None
    assert explanation.cause is Cause.fragmentation
    assert "expandable_segments:True" in explanation_text(explanation)


def test_memory_of_other_processes_is_the_cause_when_it_is_what_is_missing():
    text = NEW.format(ask="2.00 GiB", total=23.5, free="0 bytes", process=11.0, alive=10.0, empty=0.1)
    text = text.replace("Including", "Process 4711 has 12.50 GiB memory in use. Including")
    explanation = explain(text)
    assert explanation is not None
    assert (explanation.cause, explanation.message.others_bytes) == (Cause.others, int(12.5 * GIB))
    assert "others hold 12.5 GiB" in explanation_text(explanation)


def test_message_of_a_cpu_has_the_bytes_alone():
    text = "RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 6593445888 bytes. Error code 12 (Cannot allocate memory)"  # noqa: E501
    plan = resolved("model=gpt2_124m", "hw=cpu", "trainer.micro_batch_size=32", "trainer.precision=fp32")
    explanation = explain(text, plan)
    assert explanation is not None
    assert (explanation.cause, explanation.message.device) == (Cause.need, "cpu")
    assert [tensor.name for tensor in explanation.tensors] == ["the logits or their gradient in fp32"]
    assert explanation.fix.startswith("trainer.micro_batch_size=")


def test_message_of_mps_is_read():
    text = (
        "RuntimeError: MPS backend out of memory (MPS allocated: 17.43 GB, other allocations: 380.00 MB, max allowed: "
        "18.13 GB). Tried to allocate 500.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0"
    )
    message = read_message(text)
    assert message is not None
    assert (message.device, message.requested_bytes, message.others_bytes) == ("mps", 500 * MIB, 380 * MIB)
    assert message.total_bytes == pytest.approx(18.13 * GIB)


def test_fix_is_a_plan_that_fits_what_was_there():
    overrides = LOGITS["github.com/karpathy/nanoGPT/issues/88"][0]
    plan = resolved(*overrides, "lowering.policy=off")
    explanation = explain(LOGITS["github.com/karpathy/nanoGPT/issues/88"][1], plan)
    assert explanation is not None
    assert explanation.fix
    lowered = explanation.lowered
    assert lowered is not None
    assert estimate_memory(lowered.plan).device.high <= 15.78 * GIB * 0.95
    assert lowered.plan.trainer.tokens_per_step == plan.trainer.tokens_per_step


def test_plan_that_was_said_to_fit_is_lowered_all_the_same():
    plan = resolved("model=gpt2_124m", "hw=4090", "trainer.micro_batch_size=8")
    text = OLD.format(ask="1.54 GiB", total=23.5, alive=22.0, free="0.3 GiB", reserved=22.4)
    explanation = explain(text, plan)
    assert explanation is not None
    assert explanation.lowered is not None
    assert explanation.lowered.plan.trainer.micro_batch_size < 8


def test_last_message_of_a_log_counts_and_lines_may_break_anywhere():
    first = OLD.format(ask="2.00 GiB", total=23.5, alive=20.0, free="1.0 GiB", reserved=22.0)
    last = OLD.format(ask="3.00 GiB", total=23.5, alive=20.0, free="1.0 GiB", reserved=22.0).replace("; ", ";\n  ")
    message = read_message(f"step 1\n{first}\nstep 2\n{last}\n")
    assert message is not None
    assert (message.requested_bytes, message.allocated_bytes) == (3 * GIB, 20 * GIB)


@given(st.text(max_size=300))
def test_any_text_is_read_without_a_fault(text):
    read_message(text)
    read_message(f"CUDA out of memory. Tried to allocate {text}")
