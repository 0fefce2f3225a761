"""How is `2x8xh100` read, and what did somebody mean who wrote `4*4090`?"""

from __future__ import annotations

import re

from preflight.catalog import find_card

MAX_PER_NODE = 16  # a bare number up to here is a count, above it is a card's name
_STARRED = re.compile(r"(?P<n_gpus>\d+)\s*[*x ]\s*(?P<card>\S.*)")
_REVERSED = re.compile(r"(?P<card>\S.*?)\s*[*x:]\s*(?P<n_gpus>\d+)")
_COUNTED = re.compile(r"(?:(?P<n_nodes>\d+)x)?(?P<n_gpus>\d+)x(?P<card>\S.*)")


def parse_hw(name: str) -> dict[str, str | int]:
    """`4x4090`: one node with four; `2x8xh100`: two nodes with eight each; `4090`, `auto`, `cpu`: the card alone."""
    match = _COUNTED.fullmatch(name)
    if match is None:
        return {"card": name}
    return {"card": match["card"], "n_nodes": int(match["n_nodes"] or 1), "n_gpus_per_node": int(match["n_gpus"])}


def likely_hw(word: str) -> str | None:
    """What somebody meant who wrote `4*4090`, `4090x4`, `8`, or a card's name alone; None: no hardware."""
    word = word.strip().lower()
    if word.isdigit() and int(word) <= MAX_PER_NODE:
        return f"{word}x4090"
    forms = (_COUNTED.fullmatch(word), _STARRED.fullmatch(word), _REVERSED.fullmatch(word))
    found = next((form for form in forms if form is not None), None)
    card = found["card"] if found is not None else word
    try:
        find_card(card)
    except KeyError:
        return None
    return f"{found['n_gpus']}x{card}" if found is not None else card
