"""Attention of a long piece of one prompt, or of a large draft tree."""

from __future__ import annotations

import numpy as np

from .arrays import F32
from .attention_parts import MINUS_INFINITY, cut_chunks
from .checkpoint import DecoderConfig
from .kv_pool import FRAME, KVPool
from .numerics import Numerics
from .spans import RowSpan
from .workspace import Workspace

BLOCK_ROWS = 64
"""Query rows of a request handled at once."""


class BlockKernel:
    """Attention of many rows of one request, causal unless there is a mask; their keys are in the pool already."""

    def __init__(
        self,
        span: RowSpan,
        mask: F32 | None,
        pool: KVPool,
        config: DecoderConfig,
        numerics: Numerics,
        workspace: Workspace,
        bounded: bool,
    ) -> None:
        self._bounded = bounded
        self._span = span
        self._config = config
        self._pool = pool
        self._round = None if numerics.exact else numerics.round
        self._past = span.past
        self._chunks = cut_chunks([*span.context, *span.own], 0)
        kv, group, dim = config.num_kv_heads, config.group, config.head_dim
        tall, columns = min(BLOCK_ROWS, span.rows) * group, self._past + span.rows
        self._keys = workspace.share("block_keys", (kv, dim, columns))
        self._values = workspace.share("block_values", (kv, columns, dim))
        self._scores = workspace.share("block_scores", (kv * tall * columns,))
        self._queries = workspace.share("block_queries", (kv * tall * dim,))
        self._out = workspace.share("block_out", (kv * tall * dim,))
        self._peak = workspace.share("block_peak", (kv * tall,))
        self._mask = mask
        upper = np.triu(np.full((BLOCK_ROWS, BLOCK_ROWS), MINUS_INFINITY, dtype=np.float32), 1)
        self._causal = upper[:, None, :]

    def bind(self, queries: F32, keys: F32, values: F32, out: F32) -> None:
        self._rows, self._mixed = queries, out

    def __call__(self, layer: int) -> None:
        self._gather(layer)
        for low in range(0, self._span.rows, BLOCK_ROWS):
            self._block(self._rows, self._mixed, low, min(low + BLOCK_ROWS, self._span.rows))

    def _gather(self, layer: int) -> None:
        """Copy the keys and values of all positions side by side."""
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        for chunk in self._chunks:
            for index in range(chunk.frames):
                first = chunk.offset + index * FRAME
                last = first + chunk.end - chunk.begin
                self._keys[:, :, first:last] = keys[chunk.frame + index, :, :, chunk.begin : chunk.end]
                self._values[:, first:last] = values[chunk.frame + index, :, chunk.begin : chunk.end]

    def _block(self, queries: F32, out: F32, low: int, high: int) -> None:
        kv, group, dim = self._config.num_kv_heads, self._config.group, self._config.head_dim
        rows = high - low
        # What is behind a block's last row no row of it sees, unless a mask says otherwise.
        tall, columns = rows * group, self._past + (high if self._mask is None else self._span.rows)
        here = slice(self._span.begin + low, self._span.begin + high)
        q = self._queries[: kv * tall * dim].reshape(kv, rows, group, dim)
        q[...] = queries[here].reshape(rows, kv, group, dim).transpose(1, 0, 2, 3)
        scores = self._scores[: kv * tall * columns].reshape(kv, tall, columns)
        result = self._out[: kv * tall * dim].reshape(kv, tall, dim)
        peak = self._peak[: kv * tall].reshape(kv, tall, 1)
        np.matmul(q.reshape(kv, tall, dim), self._keys[:, :, :columns], out=scores)
        by_row = scores.reshape(kv, rows, group, columns)
        if self._mask is None:
            hidden, mask = by_row[..., columns - rows :], self._causal[:rows, :, :rows]
        else:
            hidden, mask = by_row[..., self._past :], self._mask[low:high, None, :]
        np.add(hidden, mask, out=hidden)
        if not self._bounded:
            np.maximum.reduce(scores, axis=-1, keepdims=True, out=peak)
            np.subtract(scores, peak, out=scores)
        np.exp(scores, out=scores)
        np.add.reduce(scores, axis=-1, keepdims=True, out=peak)
        if self._round is not None:
            self._round(scores)
        np.matmul(scores, self._values[:, :columns], out=result)
        np.divide(
            result.reshape(kv, rows, group, dim).transpose(1, 0, 2, 3),
            peak.reshape(kv, rows, group, 1).transpose(1, 0, 2, 3),
            out=out[here].reshape(rows, kv, group, dim),
        )
