"""Matrix products with few rows, fast.

OpenBLAS packs the right-hand matrix before it multiplies unless the product is small, and with the handful of rows of
a verify step the packing costs more than the product. The weight is therefore also kept in narrow column blocks, each
contiguous: products stay small enough for the kernels that do not pack, and memory is read straight through.
"""

from __future__ import annotations

import numpy as np

from .arena import Arena
from .arrays import F32
from .numerics import Numerics

BLOCK_COLUMNS = 64
MAX_BLOCKED_ROWS = 96
"""With more rows packing pays for itself."""


class Linear:
    """``out = x @ weight`` for a weight of shape [inputs, outputs]."""

    def __init__(self, weight: F32, numerics: Numerics, arena: Arena) -> None:
        self.weight = arena.place(weight)
        self.inputs, self.outputs = self.weight.shape
        self._numerics = numerics
        self._blocks = self.outputs // BLOCK_COLUMNS if self.outputs % BLOCK_COLUMNS == 0 else 1
        shaped = self.weight.reshape(self.inputs, self._blocks, -1)
        self._blocked = arena.place(shaped.transpose(1, 0, 2)) if self._blocks > 1 else self.weight[None]

    def __call__(self, x: F32, out: F32) -> F32:
        """Multiply [rows, inputs] into out [rows, outputs]; returns out."""
        rows = x.shape[0]
        if not self._numerics.exact:
            return self._rounded(x, out, rows)
        if rows > MAX_BLOCKED_ROWS or self._blocks == 1:
            return np.matmul(x, self.weight, out=out)
        np.matmul(x, self._blocked, out=out.reshape(rows, self._blocks, -1).transpose(1, 0, 2))
        return out

    def writes_blocks(self, rows: int, columns: int) -> bool:
        """Whether :meth:`blocks_into` serves a product with this many rows in blocks of ``columns`` columns."""
        blocked = self._blocks > 1 and self.outputs == self._blocks * columns
        return blocked and rows <= MAX_BLOCKED_ROWS and self._numerics.exact

    def blocks_into(self, x: F32, out: F32) -> None:
        """Multiply [rows, inputs] into out [blocks, rows, columns of a block]."""
        np.matmul(x, self._blocked, out=out)

    def _rounded(self, x: F32, out: F32, rows: int) -> F32:
        parts = self._numerics.split(rows)
        step = -(-self.inputs // parts)
        np.matmul(x[:, :step], self.weight[:step], out=out)
        if parts > 1:
            self._numerics.round(out)
            for begin in range(step, self.inputs, step):
                part = x[:, begin : begin + step] @ self.weight[begin : begin + step]
                self._numerics.round(part)
                np.add(out, part, out=out)
        self._numerics.round(out)
        return out
