from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.grid import BASELINE, Config, make_grid, max_tree_nodes, ordered, verify_width


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (BASELINE, "baseline"),
        (Config("tree", 8, 4), "b8-k4-wnone"),
        (Config("tree", 8, 4, 2048), "b8-k4-w2048"),
        (Config("tree", 8, 4, None, 16), "b8-k4-wnone-s16"),
        (Config("chain", window=128), "chain-w128"),
    ],
)
def test_id(config: Config, expected: str) -> None:
    assert config.id == expected


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"kind": "tree", "budget": 8}, id="tree without topk"),
        pytest.param({"kind": "tree", "topk": 4}, id="tree without budget"),
        pytest.param({"kind": "chain", "budget": 8}, id="chain with budget"),
        pytest.param({"kind": "baseline", "window": 128}, id="baseline with window"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"config|baseline"):
        Config(**fields)


def test_the_product_holds_every_combination_once_and_the_chain_has_no_topk() -> None:
    grid = make_grid(["chain", 8, 16, 8], [4, 8], [None, 128])
    assert [c.id for c in grid] == [
        "chain-wnone",
        "b8-k4-wnone",
        "b8-k8-wnone",
        "b16-k4-wnone",
        "b16-k8-wnone",
        "chain-w128",
        "b8-k4-w128",
        "b8-k8-w128",
        "b16-k4-w128",
        "b16-k8-w128",
    ]


def test_order_starts_with_the_baseline_and_the_chains() -> None:
    grid = (*make_grid([16, 8, "chain"], [4], [None]), BASELINE)
    assert [c.id for c in ordered(grid)] == ["baseline", "chain-wnone", "b8-k4-wnone", "b16-k4-wnone"]


@given(st.integers(1, 200), st.integers(1, 6), st.integers(2, 6))
def test_tree_nodes_equal_a_count_by_enumeration(budget: int, topk: int, block: int) -> None:
    every = sum(topk**depth for depth in range(1, block))
    assert max_tree_nodes(budget, topk, block) == min(budget, every)
    assert verify_width(Config("tree", budget, topk), block) == min(budget, every) + 1


def test_verify_width_of_chain_and_baseline() -> None:
    assert verify_width(Config("chain"), 8) == 8
    assert verify_width(Config("chain", block_size=4), 8) == 4
    assert verify_width(BASELINE, 8) == 1
