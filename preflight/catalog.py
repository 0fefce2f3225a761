"""Facts as dated data: cards, prices, electricity. Reads the CSV files in conf/catalog; unknown names are errors with the nearest names."""

from __future__ import annotations

from preflight.plan import Card, Electricity, Offer


def find_card(name: str) -> Card:
    """By short name or alias (`4090`, `rtx4090`, `NVIDIA GeForce RTX 4090`), longest match first; KeyError text lists near names."""
    raise NotImplementedError


def is_ambiguous(name: str) -> bool:
    """True when the name fits several variants and the commonest was taken (v100, h100, a100)."""
    raise NotImplementedError


def cheapest_offer(card: Card, n_gpus_per_node: int) -> Offer | None:
    """The cheapest current on-demand offer that sells that count; None when nobody does."""
    raise NotImplementedError


def electricity(country: str) -> Electricity:
    """Tariff and grid intensity; KeyError for an unknown country."""
    raise NotImplementedError
