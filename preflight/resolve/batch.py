"""How is the global batch divided? tokens_per_step = sequence_length x micro_batch_size x ranks x accumulation.

Nothing that was given is ever rounded: what does not divide is refused with the valid neighbours below and above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

from conf.schema import Config
from preflight.resolve.hw import Hardware
from preflight.resolve.resolution import Resolution


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one step reads."""

    tokens_per_step: int
    sequence_length: int
    micro_batch_size: int
    grad_accum_steps: int
    n_gpus_per_node: int


def divide_batch(config: Config, hardware: Hardware, resolution: Resolution) -> Batch | None:
    """None: it does not divide; the problem is noted with its cures."""
    trainer, recipe = config.trainer, config.model.recipe
    choose = resolution.choose
    sequence_length = choose("trainer.sequence_length", trainer.sequence_length, recipe.sequence_length, "recipe")
    tokens_per_step = choose("trainer.tokens_per_step", trainer.tokens_per_step, recipe.tokens_per_step, "recipe")
    if tokens_per_step % sequence_length:
        _refuse_length(config, tokens_per_step, sequence_length, hardware, resolution)
        return None
    n_sequences = tokens_per_step // sequence_length
    n_gpus = _usable_gpus(hardware, n_sequences, trainer.micro_batch_size or 1)
    world_size = hardware.n_nodes * n_gpus
    micro_batch_size = trainer.micro_batch_size or _largest_micro_batch(
        n_sequences, world_size, recipe.micro_batch_size
    )
    if micro_batch_size is None or n_sequences % (micro_batch_size * world_size):
        _refuse_division(config, tokens_per_step, sequence_length, world_size, resolution)
        return None
    _note_choices(config, hardware, n_gpus, n_sequences, micro_batch_size, resolution)
    return Batch(
        tokens_per_step=tokens_per_step,
        sequence_length=sequence_length,
        micro_batch_size=micro_batch_size,
        grad_accum_steps=n_sequences // (micro_batch_size * world_size),
        n_gpus_per_node=n_gpus,
    )


def divisors(n: int) -> list[int]:
    """Ascending."""
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def neighbours(value: int, valid: Sequence[int]) -> list[int]:
    """The nearest valid numbers below and above, the nearer one first."""
    below = [v for v in valid if v < value]
    above = [v for v in valid if v > value]
    return sorted([*below[-1:], *above[:1]], key=lambda v: abs(v - value))


def multiples_around(value: int, unit: int) -> list[int]:
    """The nearest multiples of `unit` below and above, the nearer one first; none is 0."""
    low = value // unit * unit
    return sorted([m for m in (low, low + unit) if m > 0], key=lambda m: abs(m - value))


def _usable_gpus(hardware: Hardware, n_sequences: int, micro_batch_size: int) -> int:
    """All of them, or with hw=auto the largest number that divides."""
    every = hardware.n_gpus_per_node
    if not hardware.may_use_fewer:
        return every
    unit = hardware.n_nodes * micro_batch_size
    return next((n for n in range(every, 0, -1) if n_sequences % (n * unit) == 0), every)


def _largest_micro_batch(n_sequences: int, world_size: int, recipe: int) -> int | None:
    if n_sequences % world_size:
        return None
    return max(size for size in divisors(n_sequences // world_size) if size <= max(recipe, 1))


def _note_choices(
    config: Config, hardware: Hardware, n_gpus: int, n_sequences: int, micro_batch_size: int, resolution: Resolution
) -> None:
    recipe = config.model.recipe.micro_batch_size
    origin = "given" if config.trainer.micro_batch_size is not None else "recipe"
    if origin == "recipe" and micro_batch_size != recipe:
        origin = f"recipe: {micro_batch_size} instead of {recipe}, the largest that divides {n_sequences:,} sequences"
    resolution.provenance["trainer.micro_batch_size"] = origin
    if n_gpus != hardware.n_gpus_per_node:
        resolution.provenance["hw.n_gpus_per_node"] = (
            f"detected: {n_gpus} of {hardware.n_gpus_per_node} GPUs are used, "
            f"the most that divide {n_sequences:,} sequences a step"
        )


def _refuse_length(
    config: Config, tokens_per_step: int, sequence_length: int, hardware: Hardware, resolution: Resolution
) -> None:
    """A step is no whole number of sequences."""
    per_sequence = neighbours(sequence_length, divisors(tokens_per_step))
    unit = sequence_length * hardware.n_nodes * hardware.n_gpus_per_node * (config.trainer.micro_batch_size or 1)
    steps = multiples_around(tokens_per_step, unit)
    message = (
        f"{tokens_per_step:,} tokens a step are no whole number of sequences of {sequence_length:,}; "
        f"valid are trainer.tokens_per_step={_either(steps)}, or trainer.sequence_length={_either(per_sequence)}"
    )
    if config.trainer.tokens_per_step is not None or config.trainer.sequence_length is None:
        resolution.refuse("trainer.tokens_per_step", tokens_per_step, message, f"trainer.tokens_per_step={steps[0]}")
    else:
        fix = f"trainer.tokens_per_step={steps[0]}"
        resolution.refuse("trainer.sequence_length", sequence_length, message, fix)


def _refuse_division(
    config: Config, tokens_per_step: int, sequence_length: int, world_size: int, resolution: Resolution
) -> None:
    """The ranks, or the ranks with the micro-batch that was given, do not divide the sequences of a step."""
    given, recipe = config.trainer.micro_batch_size, config.model.recipe.micro_batch_size
    n_sequences = tokens_per_step // sequence_length
    what = f"{n_sequences:,} sequences a step ({tokens_per_step:,} tokens / {sequence_length:,})"
    ranks = f"{world_size} rank{'s' if world_size > 1 else ''}"
    unit = sequence_length * world_size * (given or (recipe if n_sequences >= recipe * world_size else 1))
    steps = multiples_around(tokens_per_step, unit)
    other_steps = f"trainer.tokens_per_step={_either(steps)}"
    if given is not None and n_sequences % world_size == 0:
        sizes = neighbours(given, divisors(n_sequences // world_size))
        message = (
            f"{ranks} x {given} do not divide {what}; "
            f"valid are trainer.micro_batch_size={_either(sizes)}, or {other_steps}"
        )
        resolution.refuse("trainer.micro_batch_size", given, message, f"trainer.micro_batch_size={sizes[0]}")
        return
    counts = neighbours(world_size, divisors(n_sequences))
    ranks_x = f"{ranks} x {given}" if given is not None else ranks
    message = f"{ranks_x} do not divide {what}; valid are {other_steps}, or {_either(counts)} ranks"
    resolution.refuse("trainer.tokens_per_step", tokens_per_step, message, f"trainer.tokens_per_step={steps[0]}")


def _either(values: Sequence[int]) -> str:
    return " or ".join(str(value) for value in sorted(values))
