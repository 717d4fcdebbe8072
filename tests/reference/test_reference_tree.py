"""Tree construction, masks, candidates and the walk as pure functions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.reference.tree import (
    ancestor_mask,
    build_tree,
    candidates,
    causal_mask,
    chain_tree,
    possible_nodes,
)
from pytest_ddtree.reference.verify import walk

# Multiples of 1/8 add up exactly, so that equal scores are truly equal and ties are met often.
log_prob = st.integers(-40, 0).map(lambda eighths: eighths / 8)
levels = st.lists(
    st.lists(log_prob, min_size=1, max_size=3).map(lambda xs: sorted(xs, reverse=True)), max_size=4
)


def exhaustive(log_probs: list[list[float]], budget: int) -> list[tuple[int, ...]]:
    """The best prefixes of all paths, by score, ties by ranks."""
    paths = [
        path
        for depth in range(1, len(log_probs) + 1)
        for path in product(*(range(len(level)) for level in log_probs[:depth]))
    ]
    score = {path: sum(log_probs[depth][rank] for depth, rank in enumerate(path)) for path in paths}
    return sorted(paths, key=lambda path: (-score[path], path))[:budget]


def paths_of(tree) -> list[tuple[int, ...]]:
    paths = [()]
    for node in range(1, tree.width):
        paths.append((*paths[tree.parents[node]], tree.ranks[node]))
    return paths[1:]


@given(levels, st.integers(1, 40))
def test_tree_holds_the_best_nodes_in_order(log_probs, budget):
    tree = build_tree(log_probs, budget)
    assert paths_of(tree) == exhaustive(log_probs, budget)


@given(levels, st.integers(1, 40))
def test_parents_come_first_and_depths_follow(log_probs, budget):
    tree = build_tree(log_probs, budget)
    for node in range(1, tree.width):
        parent = tree.parents[node]
        assert 0 <= parent < node
        assert tree.depths[node] == tree.depths[parent] + 1


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 7))
def test_possible_nodes_is_what_construction_reaches(budget, topk, depths):
    log_probs = [[-float(rank) for rank in range(topk)] for _ in range(depths)]
    assert build_tree(log_probs, budget).width - 1 == possible_nodes(budget, topk, depths)


def test_topk_one_with_a_full_budget_is_the_chain():
    tree = build_tree([[-0.1]] * 7, 7)
    assert tree.parents == chain_tree(7).parents
    assert np.array_equal(ancestor_mask(tree.parents), causal_mask(8))


@given(levels, st.integers(1, 20))
def test_mask_shows_exactly_the_ancestors(log_probs, budget):
    tree = build_tree(log_probs, budget)
    mask = ancestor_mask(tree.parents)
    for node in range(tree.width):
        ancestors, at = set(), node
        while at >= 0:
            ancestors.add(at)
            at = tree.parents[at]
        assert {int(column) for column in np.flatnonzero(mask[node] == 0.0)} == ancestors
        assert np.all(np.isneginf(np.delete(mask[node], sorted(ancestors))))


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_candidates_are_sorted_and_normalised(topk, seed):
    rng = np.random.default_rng(seed)
    logits = rng.integers(-4, 4, size=(3, 2, 9)).astype(np.float32)
    ids, values = candidates(logits.copy(), topk)
    for row in np.ndindex(3, 2):
        order = np.argsort(-logits[row], kind="stable")[:topk]
        assert ids[row].tolist() == order.tolist()
        exact = logits[row].astype(float) - np.log(np.exp(logits[row].astype(float)).sum())
        np.testing.assert_allclose(values[row], exact[order], atol=1e-5)


def test_walk_follows_the_target_and_returns_the_bonus():
    #      0 -> 1(a) -> 3(b), 0 -> 2(c)
    parents, tokens = [-1, 0, 0, 1], [9, 1, 3, 2]
    followed = walk(parents, tokens, lambda node, depth: {0: 1, 1: 2, 3: 7}[node])
    assert followed.accepted == (1, 3)
    assert followed.bonus == 7
    assert followed.length == 3
    assert walk(parents, tokens, lambda node, depth: {0: 3, 2: 5}[node]).accepted == (2,)
    assert walk(parents, tokens, lambda node, depth: 8).accepted == ()


def test_walk_passes_the_depth():
    seen = []
    walk([-1, 0, 1], [0, 5, 6], lambda node, depth: seen.append((node, depth)) or (5, 6, 1)[node])
    assert seen == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("log_probs", [[], [[]]])
def test_no_candidates_leave_the_root_alone(log_probs):
    assert build_tree(log_probs, 5).width == 1
