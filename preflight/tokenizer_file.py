"""What does a tokenizer.json (Hugging Face tokenizers) say of itself? Its largest id, and the token that ends a text.

Read as JSON: a bill needs no library for it. The file has the vocabulary under `model.vocab` (a mapping for BPE,
WordPiece and WordLevel, a list of pairs for Unigram) and what was added under `added_tokens`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")  # GPT-2 and NeoX, Llama 3, Llama 2, Gemma, BERT
TOKENIZER_NAME = "tokenizer.json"  # beside a model's config.json, as save_pretrained writes it
MOST_IDS = 10_000_000  # as many as model.vocab_size may be


def largest_id(path: Path) -> int:
    """OSError or ValueError when the file is none."""
    return max(ids_of(path).values())


def end_of_text(path: Path) -> int | None:
    """None: it has no token of that meaning that we know."""
    ids = ids_of(path)
    return next((ids[name] for name in ENDS if name in ids), None)


@lru_cache(maxsize=2)
def ids_of(path: Path) -> Mapping[str, int]:
    """Every token's number."""
    if path.exists() and not path.is_file():  # a pipe or a device is waited for, or never ends
        raise ValueError("not a regular file")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"not a tokenizer.json: {error}") from error
    try:
        vocabulary: Any = document["model"]["vocab"]
        pairs = vocabulary.items() if isinstance(vocabulary, dict) else ((t, i) for i, (t, _) in enumerate(vocabulary))
        ids = {str(token): int(i) for token, i in pairs}
        ids |= {str(added["content"]): int(added["id"]) for added in document.get("added_tokens", [])}
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"not a tokenizer.json: {error!r}") from error
    if not ids:
        raise ValueError("not a tokenizer.json: it has no vocabulary")
    if min(ids.values()) < 0 or max(ids.values()) >= MOST_IDS:
        raise ValueError(f"not a tokenizer.json: its ids are not within 0 and {MOST_IDS - 1:,}")
    return ids
