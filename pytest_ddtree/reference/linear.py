"""Matrix products, fast for a handful of rows and for a whole prompt alike.

OpenBLAS packs the right-hand matrix before it multiplies unless the product is small, and with the handful of rows of
a verify step the packing costs more than the product. The weight is therefore kept in narrow column blocks, each
contiguous: products stay small enough for the kernels that do not pack, and memory is read straight through. Many rows
go in pieces that are small enough too. That is no slower than one packed product, and a prompt leaves in the caches
what the decode steps behind it read.
"""

from __future__ import annotations

import numpy as np

from .arena import Arena
from .arrays import F32
from .numerics import Numerics

BLOCK_COLUMNS = 64
PIECE_ROWS = 32
"""Rows multiplied at once; more spoil the first-level cache, fewer read the weight too often."""


class Linear:
    """``out = x @ weight`` for a weight of shape [inputs, outputs]."""

    def __init__(self, weight: F32, numerics: Numerics, arena: Arena) -> None:
        self.inputs, self.outputs = weight.shape
        self._numerics = numerics
        self._exact = numerics.exact
        narrow = numerics.exact and self.outputs % BLOCK_COLUMNS == 0
        self._blocks = self.outputs // BLOCK_COLUMNS if narrow else 1
        shaped = weight.reshape(self.inputs, self._blocks, -1)
        self._weight = arena.place(shaped.transpose(1, 0, 2))

    def __call__(self, x: F32, out: F32) -> F32:
        """Multiply [rows, inputs] into out [rows, outputs]; returns out."""
        self.into(x, self.blocks_of(out))
        return out

    def blocks_of(self, out: F32) -> F32:
        """A view [blocks, rows, columns of a block] of [rows, outputs], as :meth:`into` takes it."""
        return out.reshape(len(out), self._blocks, -1).transpose(1, 0, 2)

    def has_blocks(self, columns: int) -> bool:
        """Whether the blocks are ``columns`` columns wide."""
        return bool(self.outputs == self._blocks * columns)

    def into(self, x: F32, out: F32) -> None:
        """Multiply [rows, inputs] into out [blocks, rows, columns of a block]."""
        rows = len(x)
        if not self._exact:
            self._rounded(x, out[0], rows)
        elif rows <= PIECE_ROWS or self._blocks == 1:
            np.matmul(x, self._weight, out=out)
        else:
            size = -(-rows // -(-rows // PIECE_ROWS))
            for begin in range(0, rows, size):
                np.matmul(x[begin : begin + size], self._weight, out=out[:, begin : begin + size])

    def _rounded(self, x: F32, out: F32, rows: int) -> None:
        weight = self._weight[0]
        parts = self._numerics.split(rows)
        step = -(-self.inputs // parts)
        np.matmul(x[:, :step], weight[:step], out=out)
        if parts > 1:
            self._numerics.round(out)
            for begin in range(step, self.inputs, step):
                part = x[:, begin : begin + step] @ weight[begin : begin + step]
                self._numerics.round(part)
                np.add(out, part, out=out)
        self._numerics.round(out)
