"""Why did a run go out of memory, which tensor was it, and what would have fitted?

The request that failed is held against the tensors of the plan: PyTorch's allocator asks the device for the tensor's
own size, from 10 MiB on in steps of 2 MiB (kMinLargeAlloc, kRoundLarge in c10/core/AllocatorConfig.h). In public
threads it is most often the logits, B x T x V x bytes. What the message holds decides the cause: enough reserved and
empty memory means fragmentation, enough memory of other processes means the card was shared, else it is real need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from conf.choices import Attention, PolicyChoice
from preflight.hw_plan import CardKind
from preflight.lowering.lower import Lowered, lower
from preflight.memory.peak import estimate_memory
from preflight.oom_message import OutOfMemory, read_message
from preflight.plan import RunPlan
from preflight.units import MIB, format_bytes

ROUNDING_BYTES = 2 * MIB
ROUNDED_FROM_BYTES = 10 * MIB
BYTES_OF = {"fp32": 4, "16 bit": 2}


class Cause(Enum):
    """What was short of memory."""

    need = "need"  # the tensors together are too large
    fragmentation = "fragmentation"  # enough is reserved, in pieces that are too small
    others = "others"  # other processes hold what is missing


class Tensor(NamedTuple):
    """What a plan allocates in one piece."""

    name: str
    shape: str
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What the message and the plan say together."""

    message: OutOfMemory
    cause: Cause
    tensors: tuple[Tensor, ...]  # those that fit the request; empty: none does, or there is no plan
    lowered: Lowered | None  # the plan that would have fitted; None: no plan was given

    @property
    def fix(self) -> str:
        """Overrides that would have fitted; '' when none is known."""
        if self.lowered is None:
            return ""
        if self.lowered.changes:
            return " ".join(f"{change.field}={change.new}" for change in self.lowered.changes)
        return next((violation.fix for violation in self.lowered.violations if violation.budget == "memory"), "")


def explain(text: str, plan: RunPlan | None = None) -> Explanation | None:
    """None: the text holds no out-of-memory message."""
    message = read_message(text)
    if message is None:
        return None
    return Explanation(
        message=message,
        cause=_cause(message),
        tensors=tensors_like(plan, message) if plan is not None else (),
        lowered=_lowered(plan, message) if plan is not None else None,
    )


def explanation_text(explanation: Explanation) -> str:
    """A few lines for a person."""
    message = explanation.message
    lines = [f"out of memory: {format_bytes(message.requested_bytes)} more were asked for on {message.device}"]
    lines += [f"  that is {name}, {shape} = {format_bytes(size)}" for name, shape, size in explanation.tensors]
    lines.append(f"  {_cause_in_words(explanation)}")
    if explanation.cause is Cause.fragmentation:
        lines.append("  fix: PYTORCH_ALLOC_CONF=expandable_segments:True (launch.py sets it unless you did), or")
    if explanation.fix:
        lines.append(f"  fix: {explanation.fix}")
    elif explanation.lowered is None:
        lines.append("  give the run's folder or its overrides as well, to learn which tensor it was and what fits")
    return "\n".join(lines)


def tensors_like(plan: RunPlan, message: OutOfMemory) -> tuple[Tensor, ...]:
    """The plan's tensors that a request of this size may be, those of one size together, the nearest first."""
    matches = [tensor for tensor in _tensors(plan) if _may_be(tensor.n_bytes, message)]
    nearest = min((abs(tensor.n_bytes - message.requested_bytes) for tensor in matches), default=0)
    return tuple(tensor for tensor in matches if abs(tensor.n_bytes - message.requested_bytes) == nearest)


def _may_be(n_bytes: int, message: OutOfMemory) -> bool:
    rounded = n_bytes if n_bytes < ROUNDED_FROM_BYTES else -(-n_bytes // ROUNDING_BYTES) * ROUNDING_BYTES
    return n_bytes - message.precision_bytes <= message.requested_bytes <= rounded + message.precision_bytes


def _tensors(plan: RunPlan) -> Iterator[Tensor]:
    """Those of a GPT's step that are large; each may be fp32 or 16 bit, whoever's code it was."""
    model, trainer = plan.model, plan.trainer
    B, T, C, V = trainer.micro_batch_size, trainer.sequence_length, model.n_embd, model.vocab_size  # noqa: N806
    head_dim = model.head_dim or C // model.n_head
    sizes = [
        ("the logits or their gradient", "B x T x V", (B, T, V)),
        ("the MLP's hidden layer", "B x T x d_ff", (B, T, model.d_ff)),
        (
            "queries, keys and values",
            "B x T x (heads + 2 kv) x D",
            (B, T, (model.n_head + 2 * model.n_kv_head) * head_dim),
        ),
        ("the residual stream", "B x T x C", (B, T, C)),
        ("the token embedding, its gradient or a moment", "V x C", (V, C)),
        ("an MLP matrix, its gradient or a moment", "d_ff x C", (model.d_ff, C)),
    ]
    if trainer.attention is Attention.eager:
        sizes.append(("the attention scores", "B x heads x T x T", (B, model.n_head, T, T)))
    if trainer.loss_chunk_tokens:
        sizes.insert(0, ("a chunk of the logits", "tokens x V", (trainer.loss_chunk_tokens, V)))
    for name, letters, dims in sizes:
        for word, width in BYTES_OF.items():
            n_bytes = width
            for dim in dims:
                n_bytes *= dim
            yield Tensor(f"{name} in {word}", f"{letters} = {' x '.join(f'{dim:,}' for dim in dims)}", n_bytes)


def _cause(message: OutOfMemory) -> Cause:
    missing = message.requested_bytes - (message.free_bytes or 0)
    unallocated, others = message.unallocated_bytes or 0, message.others_bytes or 0
    if unallocated >= missing:
        return Cause.fragmentation
    return Cause.others if others + unallocated >= missing else Cause.need


def _cause_in_words(explanation: Explanation) -> str:
    message = explanation.message
    if explanation.cause is Cause.fragmentation:
        return (
            f"fragmentation: {format_bytes(message.unallocated_bytes or 0)} are reserved and empty, "
            "in pieces too small for it"
        )
    if explanation.cause is Cause.others:
        return f"others hold {format_bytes(message.others_bytes or 0)} of the device: end them, or take another card"
    if message.allocated_bytes is None:
        return "real need: this process wants more than there is"
    held = f"real need: {format_bytes(message.allocated_bytes)} of tensors were alive"
    return held if message.total_bytes is None else f"{held} on a device of {format_bytes(message.total_bytes)}"


def _lowered(plan: RunPlan, message: OutOfMemory) -> Lowered:
    """The least lowering under a limit that the failed run could not keep; hours and money are not asked here.

    The estimate was too low by at least (alive + asked for) / estimated, so the limit shrinks by as much, and below
    what was estimated in any case: this plan did not fit.
    """
    memory, hw = estimate_memory(plan), plan.hw
    device_bytes = message.total_bytes or memory.card_bytes or memory.device.high
    alive = (message.allocated_bytes or 0) + message.requested_bytes
    overrun = max(1.0, alive / max(1.0, memory.allocated.mid))
    usable = (device_bytes - (message.others_bytes or 0)) * plan.budget.max_memory_fraction / overrun
    limit = max(1, int(min(usable, memory.device.high - 1)))
    if hw.card.kind is CardKind.cpu:  # its ranks share what there is
        hw = replace(hw, host_memory_bytes=limit * hw.n_gpus_per_node)
    else:
        hw = replace(hw, card=replace(hw.card, memory_bytes=limit))
    free = replace(plan.budget, max_memory_fraction=1.0, max_hours=None, max_cost_usd=None, max_energy_kwh=None)
    return lower(replace(plan, hw=hw, budget=free, lowering=replace(plan.lowering, policy=PolicyChoice.auto)))
