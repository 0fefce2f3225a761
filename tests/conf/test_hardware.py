import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.compose import compose
from conf.hardware import HardwareSource
from preflight.resolve.hw_names import likely_hw, parse_hw, similar_cards


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("4x4090", {"card": "4090", "n_nodes": 1, "n_gpus_per_node": 4}),
        ("2x8xh100", {"card": "h100", "n_nodes": 2, "n_gpus_per_node": 8}),
        ("2xcpu", {"card": "cpu", "n_nodes": 1, "n_gpus_per_node": 2}),
        ("4xRTX 4090", {"card": "RTX 4090", "n_nodes": 1, "n_gpus_per_node": 4}),
        ("4090", {"card": "4090"}),
        ("4X4090", {"card": "4090", "n_nodes": 1, "n_gpus_per_node": 4}),
        ("4090x4", {"card": "4090x4"}),  # the card first: told as a mistake when resolved
        ("auto", {"card": "auto"}),
        ("cpu", {"card": "cpu"}),
        ("NVIDIA GeForce RTX 4090", {"card": "NVIDIA GeForce RTX 4090"}),
    ],
)
def test_parse_hw_reads_counts_and_card(name, expected):
    assert parse_hw(name) == expected


@settings(max_examples=12, deadline=None)
@given(
    n_nodes=st.integers(1, 2000),
    n_gpus=st.integers(1, 200),
    card=st.sampled_from(["4090", "h100", "a100_80gb", "t4", "cpu", "rtx4090", "auto"]),
)
def test_hw_takes_any_number_of_nodes_and_cards(n_nodes, n_gpus, card):
    config = compose([f"hw={n_nodes}x{n_gpus}x{card}"]).config
    assert config is not None
    assert (config.hw.n_nodes, config.hw.n_gpus_per_node, config.hw.card) == (n_nodes, n_gpus, card)


@settings(max_examples=4, deadline=None)
@given(n_gpus=st.integers(1, 200))
def test_hw_works_in_a_grid(n_gpus):
    grid = compose(["-m", f"hw={n_gpus}x4090,{n_gpus}xh100,cpu"]).grid
    assert [(row.config.hw.card, row.config.hw.n_gpus_per_node) for row in grid] == [
        ("4090", n_gpus),
        ("h100", n_gpus),
        ("cpu", None),
    ]


def test_hw_works_in_an_experiment():
    config = compose(["experiment=gpt2_124m_8xa100"]).config
    assert config is not None
    assert (config.hw.card, config.hw.n_gpus_per_node) == ("a100_40gb", 8)


def test_source_leaves_the_schema_and_other_groups_alone():
    source = HardwareSource("test", "hardware://")
    assert source.is_config("hw/4x4090")
    assert not source.is_config("hw/schema")
    assert not source.is_config("model/tiny")
    assert source.is_group("hw")
    assert not source.is_group("model")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("4*4090", "4x4090"),
        ("rtx4090x4", "4xrtx4090"),
        ("4090x4", "4x4090"),
        ("2x4090x4", "2x4x4090"),
        ("4090*8", "8x4090"),
        ("4,4090", "4x4090"),
        ("3090,4090", None),
        ("2x8", "2x8x4090"),
        ("2x8xH100", "2x8xh100"),
        ("4 4090", "4x4090"),
        ("a100:8", "8xa100"),
        ("8xA100", "8xa100"),
        ("h100", "h100"),
        ("8", "8x4090"),
        ("nonsense", None),
        ("4*nonsense", None),
    ],
)
def test_likely_hw_reads_other_spellings(word, meant):
    assert likely_hw(word) == meant


@pytest.mark.parametrize("word", ["foo", "tpu", "gpu", "banana", "titan", "xyz", ""])
def test_similar_cards_are_none_when_none_is_like_it(word):
    assert similar_cards(word) == []


@pytest.mark.parametrize(("word", "first"), [("RTX 4095", "4090"), ("h300", "h800"), ("4090 Laptop GPU", "4090")])
def test_similar_cards_begin_with_the_likeliest(word, first):
    assert similar_cards(word)[0] == first
