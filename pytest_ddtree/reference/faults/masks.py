"""Faults of the verify mask and of the nodes' positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arrays import F32
from ..tree import DraftTree
from .base import Fault


class MaskBlockSize(Fault):
    """The verify mask is sized by the block size: the kernel steps through it in rows of block_size entries.

    Right only when budget + 1 is the block size. Otherwise every row behind the root's begins at the wrong entry, and
    what lies beyond the buffer reads as visible.
    """

    name = "mask_block_size"
    imitates = "SGLang PR #27509: the captured verify graph is sized by block_size instead of budget + 1"

    def verify_mask(self, mask: F32, tree: DraftTree, *, block_size: int) -> F32:
        width = len(mask)
        if width == block_size or not self.fires():
            return mask
        buffer = np.zeros(width * max(width, block_size), dtype=np.float32)
        buffer[: width * width] = mask.reshape(-1)
        rows = np.arange(width)[:, None] * block_size + np.arange(width)
        wrong: F32 = buffer[np.minimum(rows, len(buffer) - 1)]
        np.fill_diagonal(wrong, 0.0)
        return wrong


class SiblingsVisible(Fault):
    """Nodes see their siblings besides their ancestors."""

    name = "siblings_visible"
    imitates = "the mask fault measured on a GPU: siblings attend to each other, accept length hardly moves"

    def verify_mask(self, mask: F32, tree: DraftTree, *, block_size: int) -> F32:
        if not self.fires():
            return mask
        parents = np.asarray(tree.parents)
        wrong = mask.copy()
        wrong[(parents[:, None] == parents[None, :]) & (parents[:, None] >= 0)] = 0.0
        return wrong


class MaskCausal(Fault):
    """The tree is verified as if its nodes followed each other: a plain causal mask."""

    name = "mask_causal"
    imitates = (
        "SGLang PRs #27509 and #36196: a backend without tree masks verifies the tree as a causal chain"
    )

    def verify_mask(self, mask: F32, tree: DraftTree, *, block_size: int) -> F32:
        if not self.fires():
            return mask
        return np.triu(np.full(mask.shape, -np.inf, dtype=np.float32), 1)


class MaskFirstRequestOnly(Fault):
    """Only the first request of a process gets its own mask; all later trees are verified with that one."""

    name = "mask_stale"
    imitates = "SGLang PR #29907 thread: parent indices of the captured step are replayed with another tree"

    def __init__(self, argument: str | None = None, rate: float = 1.0) -> None:
        super().__init__(argument, rate)
        self._first: F32 | None = None

    def verify_mask(self, mask: F32, tree: DraftTree, *, block_size: int) -> F32:
        if self._first is None or self._first.shape != mask.shape:
            self._first = mask
        return self._first if self.fires() else mask


class PositionsByOrder(Fault):
    """A node's position is its index in the tree instead of its depth."""

    name = "positions_by_order"
    imitates = "public notes on DDTree graphs: depth positions are ignored, nodes are numbered in order"

    def verify_depths(self, depths: Sequence[int]) -> Sequence[int]:
        return range(len(depths)) if self.fires() else depths


class PositionOffByOne(Fault):
    """Every draft node sits one position too far."""

    name = "position_off_by_one"
    imitates = "public notes on DDTree: verify positions are off because a host-side mirror runs ahead"

    def verify_depths(self, depths: Sequence[int]) -> Sequence[int]:
        if not self.fires():
            return depths
        return [depth + 1 if depth else 0 for depth in depths]
