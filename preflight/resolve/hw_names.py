"""How is `2x8xh100` read, and what did somebody mean who wrote `4*4090`?"""

from __future__ import annotations

import re

from preflight.catalog import find_card, near_card_names

MAX_PER_NODE = 16  # a bare number up to here is a count, above it is a card's name
ANY_GPU = ("gpu", "gpus", "cuda", "nvidia")  # words for a card that name none
NOT_CARDS = ("auto", "cpu", "mps", "custom")
_STARRED = re.compile(r"(?P<n_gpus>\d+)\s*[*x, ]\s*(?P<card>\S.*)")
_REVERSED = re.compile(r"(?P<card>\S.*?)\s*[*x:]\s*(?P<n_gpus>\d+)")
_COUNTED = re.compile(r"(?:(?P<n_nodes>\d+)x)?(?P<n_gpus>\d+)x(?P<card>\S.*)", re.IGNORECASE)
_COUNTS = re.compile(r"\d+(x\d+)?")
_NODES_FIRST = re.compile(r"(\d+)x(.+x\d+)")
_NO_NAME = re.compile(r"nvidia|geforce|tesla|rtx|gtx|[\s_-]")
_ALIKE = 0.6  # of difflib's ratio: 4095 is like 4090, tpu is not like t4


def parse_hw(name: str) -> dict[str, str | int]:
    """`4x4090`: one node with four; `2x8xh100`: two nodes with eight each; `4090`, `auto`, `cpu`: the card alone."""
    match = _COUNTED.fullmatch(name)
    if match is None or (_is_count(match["card"]) and not _is_count(match["n_gpus"])):  # 4090x4 is left as it is
        return {"card": name}
    return {"card": match["card"], "n_nodes": int(match["n_nodes"] or 1), "n_gpus_per_node": int(match["n_gpus"])}


def likely_hw(word: str) -> str | None:
    """What somebody meant who wrote `4*4090`, `4090x4`, `8`, or a card's name alone; None: no hardware."""
    word = word.strip().lower()
    if _COUNTS.fullmatch(word) and all(map(_is_count, word.split("x"))):
        return f"{word}x4090"
    if _is_card(word):
        return word
    several = _NODES_FIRST.fullmatch(word)
    if several is not None and (each := likely_hw(several[2])) is not None:
        return f"{several[1]}x{each}"
    for form in (_COUNTED, _STARRED, _REVERSED):
        found = form.fullmatch(word)
        if found is not None and _is_card(found["card"]) and (form is _COUNTED or _is_count(found["n_gpus"])):
            nodes = f"{found['n_nodes']}x" if form is _COUNTED and found["n_nodes"] else ""
            return f"{nodes}{found['n_gpus']}x{found['card']}"
    return None


def is_machine(name: str) -> bool:
    """May it stand as `hw.card`?"""
    return name.strip().lower() in NOT_CARDS or _is_card(name)


def is_same_machine(one: str, other: str) -> bool:
    """`RTX 4090` and `4090` are one card."""
    if one.strip().lower() == other.strip().lower():
        return True
    return _is_card(one) and _is_card(other) and find_card(one) == find_card(other)


def unknown_card(name: str) -> str:
    """What to say about it."""
    near = similar_cards(name)
    likeness = f"the nearest are {', '.join(near)}" if near else "nor is one like it"
    return (
        f"{name} is no card of the catalog; {likeness}; "
        "action=compare lists all cards, hw=custom takes the numbers of your own"
    )


def similar_cards(name: str) -> list[str]:
    """The catalog's cards that somebody may have meant; empty when none is like it."""
    from difflib import SequenceMatcher  # not at module level: only mistakes need it

    squashed = _NO_NAME.sub("", name.lower())
    return [
        near
        for near in near_card_names(name)
        if near in squashed or SequenceMatcher(None, squashed, near).ratio() >= _ALIKE
    ]


def _is_count(text: str) -> bool:
    return text.isdigit() and 1 <= int(text) <= MAX_PER_NODE


def _is_card(name: str) -> bool:
    try:
        find_card(name)
    except KeyError:
        return False
    return True
