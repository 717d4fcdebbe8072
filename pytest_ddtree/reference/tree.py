"""The draft tree: which continuations are verified in one step.

Best-first construction over per-depth candidates (arXiv 2604.12989, Algorithm 1). The drafter's positions are
independent of each other, so a node's score is the sum of its path's log-probabilities; popping the best open node
until the budget is spent gives the prefix-closed set with the largest total score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

import numpy as np

from .arrays import F32, I64

ROOT = 0
KEPT_WIDTH = 64
"""Masks of trees up to this width are kept: 16 KiB each."""


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Nodes of one tree, the root (the last known token) first, every parent before its children.

    parents[i] is the index of node i's parent (the root's is -1), depths[i] its distance from the root, ranks[i] the
    rank of its token among the candidates of its depth (the root's is -1).
    """

    parents: tuple[int, ...]
    depths: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def width(self) -> int:
        """Rows that one verification processes, the root included."""
        return len(self.parents)


def possible_nodes(budget: int, topk: int, depths: int) -> int:
    """min(budget, nodes that topk candidates at each of ``depths`` depths allow)."""
    total, level = 0, 1
    for _ in range(depths):
        level *= topk
        total += level
        if total >= budget:
            return budget
    return total


def build_tree(log_probs: Sequence[Sequence[float]], budget: int) -> DraftTree:
    """The best ``budget`` nodes; ties go to the smaller tuple of ranks along the path.

    log_probs[d] lists the candidates of depth d + 1, best first. Fewer nodes come back when there are no more.
    """
    parents, depths, ranks = [-1], [0], [-1]
    horizon = len(log_probs)
    if horizon == 0 or not log_probs[0]:
        return DraftTree(tuple(parents), tuple(depths), tuple(ranks))
    # An entry: (minus the path's score, ranks along the path, parent's index, score of the parent's path).
    open_nodes: list[tuple[float, tuple[int, ...], int, float]] = []
    heappush(open_nodes, (-log_probs[0][0], (0,), ROOT, 0.0))
    while open_nodes and len(parents) <= budget:
        minus_score, path, parent, parent_score = heappop(open_nodes)
        index, depth, rank = len(parents), len(path), path[-1]
        parents.append(parent)
        depths.append(depth)
        ranks.append(rank)
        siblings = log_probs[depth - 1]
        if rank + 1 < len(siblings):
            heappush(
                open_nodes,
                (-(parent_score + siblings[rank + 1]), (*path[:-1], rank + 1), parent, parent_score),
            )
        if depth < horizon:
            score = -minus_score
            heappush(open_nodes, (-(score + log_probs[depth][0]), (*path, 0), index, score))
    return DraftTree(tuple(parents), tuple(depths), tuple(ranks))


@lru_cache(maxsize=64)
def chain_tree(depths: int) -> DraftTree:
    """The plain DFlash chain: every depth's first candidate under the one before."""
    return DraftTree(tuple(range(-1, depths)), tuple(range(depths + 1)), (-1, *([0] * depths)))


def ancestor_mask(parents: tuple[int, ...]) -> F32:
    """Additive mask [width, width]: 0 where a node may see (itself and its ancestors), -inf elsewhere.

    The caller must not write to it. Those of large trees hardly come again, and a thousand of them would fill the memory.
    """
    return _kept_mask(parents) if len(parents) <= KEPT_WIDTH else _make_mask(parents)


@lru_cache(maxsize=1024)
def _kept_mask(parents: tuple[int, ...]) -> F32:
    return _make_mask(parents)


def _make_mask(parents: tuple[int, ...]) -> F32:
    width = len(parents)
    mask = np.full((width, width), -np.inf, dtype=np.float32)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] = mask[parent]
        mask[node, node] = 0.0
    mask.setflags(write=False)
    return mask


@lru_cache(maxsize=128)
def causal_mask(rows: int) -> F32:
    """Additive mask [rows, rows] of consecutive tokens; the caller must not write to it."""
    mask = np.triu(np.full((rows, rows), -np.inf, dtype=np.float32), 1)
    mask.setflags(write=False)
    return mask


def candidates(logits: F32, topk: int) -> tuple[I64, F32]:
    """Ids and log-probabilities of the topk best tokens, best first, equal logits by id.

    logits: [..., vocab]; both results are [..., topk]. ``logits`` is overwritten.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    line, begins = flat.reshape(-1), np.arange(0, flat.size, flat.shape[-1])
    ids = np.empty((len(flat), topk), dtype=np.int64)
    values = np.empty((len(flat), topk), dtype=np.float32)
    total = np.empty(len(flat), dtype=np.float32)
    for rank in range(topk):
        best = flat.argmax(axis=-1)
        places = begins + best
        ids[:, rank] = best
        values[:, rank] = line[places]
        if rank == 0:
            shifted = np.subtract(flat, values[:, :1])
            total = np.exp(shifted, out=shifted).sum(axis=-1)
        line[places] = -np.inf
    values -= values[:, :1] + np.log(total)[:, None]
    shape = (*logits.shape[:-1], topk)
    return ids.reshape(shape), values.reshape(shape)
