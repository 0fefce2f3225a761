"""What does a Hugging Face config.json ask for that is billed otherwise, or not computed? Each by its name, as a note.

The names and defaults are those of transformers' configuration classes. What would change the bill (experts, another
block) is refused in `hf`; what is here costs the same or less than what is billed, and the trainer computes the plain
model. Weights that were trained with it are refused where they are read (`trainer.init_from`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Content = Mapping[str, Any]
EXPERTS = (
    "num_local_experts", "num_experts", "n_routed_experts", "n_shared_experts", "num_experts_per_tok",
    "moe_intermediate_size", "shared_expert_intermediate_size",
)  # fmt: skip
MISTRALS_WINDOW = 4096  # MistralConfig's default, when the file says nothing
HEADS = ("ForCausalLM", "LMHeadModel", "Model")  # ends of the classes whose head is a language model's, or none


def refuse_other_parts(content: Content) -> None:
    """ValueError: layers whose size or work the bill would not have."""
    for name in EXPERTS:
        if content.get(name) not in (None, 0, 1, False):
            raise ValueError(f"{name}={content[name]} (experts) is not modelled")
    if content.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise ValueError(f"partial_rotary_factor={content['partial_rotary_factor']} is not modelled")
    angles(content)  # what cannot be understood
    window(content)


def truth(content: Content, name: str, default: bool) -> bool:
    """Neither the text "false", which is true in Python, nor a number; null is false, as in transformers."""
    value = content.get(name, default)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} is neither true nor false")
    return bool(value)


def notes(content: Content, sequence_length: int) -> dict[str, str]:
    """Name of the field -> what is done with it; nothing for what has no effect."""
    found: dict[str, str] = {}
    for look in LOOKS:
        found.update(look(content, sequence_length))
    return found


def angles(content: Content) -> str:
    """How rotary angles are scaled; `default`: not at all."""
    name = "rope_parameters" if content.get("rope_parameters") else "rope_scaling"
    rope = content.get(name) or {}
    if not isinstance(rope, Mapping):
        raise ValueError(f"{name}={rope} is no mapping")
    return str(rope.get("rope_type", rope.get("type", "default")))


def window(content: Content) -> int | None:
    """Positions that attention reaches back; None: all of them. Qwen's counts only where it is switched on."""
    is_qwen = str(content.get("model_type", "")).startswith("qwen")
    if is_qwen and not truth(content, "use_sliding_window", False):
        return None
    usual = MISTRALS_WINDOW if content.get("model_type") == "mistral" else None
    value = content.get("sliding_window", usual)
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise ValueError(f"sliding_window={value} is no count")
    return value


def _angles(content: Content, sequence_length: int) -> Iterator[tuple[str, str]]:
    if (kind := angles(content)) != "default":
        yield "rope_scaling", f"scaled angles ({kind}) cost the same and are not computed: trained with plain ones"


def _window(content: Content, sequence_length: int) -> Iterator[tuple[str, str]]:
    reach = window(content)
    if reach is not None and reach < sequence_length:
        yield (
            "sliding_window",
            f"attention over the last {reach:,} positions is not modelled: billed and computed over all "
            f"{sequence_length:,}; trainer.sequence_length={reach} is the same for both",
        )


def _quantization(content: Content, sequence_length: int) -> Iterator[tuple[str, str]]:
    asked = content.get("quantization_config")
    if asked:
        kind = asked.get("quant_method", "unknown") if isinstance(asked, Mapping) else asked
        yield (
            "quantization_config",
            f"weights of fewer bits ({kind}) are not billed: memory is that of trainer.precision; "
            "trainer.adapter=qlora bills and trains frozen ones of 4 bits",
        )


def _dropout(content: Content, sequence_length: int) -> Iterator[tuple[str, str]]:
    """One rate for all three places."""
    if content.get("model_type") == "gpt2":
        rate = content.get("resid_pdrop", 0.1)
        for name in ("attn_pdrop", "embd_pdrop"):
            if content.get(name, 0.1) != rate:
                yield name, f"one rate for all places: resid_pdrop's {rate} instead of {content.get(name, 0.1)}"
    elif rate := content.get("attention_dropout"):
        yield "attention_dropout", f"one rate for all places: {rate} of embeddings and residuals too"


def longest_made_for(content: Content) -> int | None:
    """Positions that rotary models have seen; None: the folder does not say."""
    most = content.get("max_position_embeddings")
    return most if type(most) is int and most >= 1 else None


def _positions(content: Content, sequence_length: int) -> Iterator[tuple[str, str]]:
    most = longest_made_for(content)
    if most is not None and most < sequence_length:
        yield "max_position_embeddings", f"sequences of {sequence_length:,} are longer than the {most:,} it is made for"


def _head(content: Content, sequence_length: int) -> Iterator[tuple[str, str]]:
    names = content.get("architectures")
    for name in names if isinstance(names, list) else ():
        if not str(name).endswith(HEADS):
            yield "architectures", f"{name} has a head of its own: billed and trained with a language model's"
    if content.get("auto_map"):
        yield "auto_map", "code of its own is not read: billed and trained as its model_type says"


LOOKS: tuple[Callable[[Content, int], Iterator[tuple[str, str]]], ...] = (
    _angles, _window, _quantization, _dropout, _positions, _head,
)  # fmt: skip
