"""Attention of requests with few rows each: decoding, verifying, drafting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .arrays import F32
from .attention_parts import MINUS_INFINITY, Chunk, ContextPart, SteppedPart, cut_chunks, equal_steps
from .checkpoint import DecoderConfig
from .kv_pool import KVPool
from .numerics import Numerics
from .slots import merge_extents
from .spans import RowSpan
from .workspace import Workspace


class GroupKernel:
    """Attention of several requests with the same small number of rows each."""

    def __init__(
        self,
        spans: Sequence[RowSpan],
        masks: Sequence[F32 | None],
        pool: KVPool,
        config: DecoderConfig,
        numerics: Numerics,
        workspace: Workspace,
        bounded: bool,
    ) -> None:
        self._bounded = bounded
        self._begin = spans[0].begin
        self._rows = rows = spans[0].rows
        self._count = count = len(spans)
        self._config = config
        self._round = None if numerics.exact else numerics.round
        kv, group, dim = config.num_kv_heads, config.group, config.head_dim
        pasts = [span.past for span in spans]
        columns = rows + max(pasts)
        tall = rows * group
        self._scores = workspace.take("scores", (count, kv, tall, columns))
        # Padding has to survive the softmax of every layer; without it one buffer is enough.
        self._probabilities = self._scores
        if min(pasts) != max(pasts):
            self._probabilities = workspace.share("probabilities", (count, kv, tall, columns))
        self._ones = np.ones(columns, dtype=np.float32) if rows > 1 else None
        self._out = workspace.share("attention_out", (count, kv, tall, dim))
        self._peak = workspace.share("attention_peak", (count, kv, tall, 1))
        self._out_by_row = self._out.reshape(count, kv, group, rows, dim).transpose(0, 3, 1, 2, 4)
        self._peak_by_row = self._peak.reshape(count, kv, group, rows, 1).transpose(0, 3, 1, 2, 4)
        self._own_scores = self._scores[..., -rows:]
        self._own_probabilities = self._probabilities[..., -rows:]
        self._sums = self._peak[..., 0]
        self._mask = _stack_masks(masks, rows, config)
        self._stored = bool(spans[0].own)
        chunks: list[list[Chunk]] = []
        for span, past in zip(spans, pasts, strict=True):
            extents = merge_extents([*span.context, *span.own]) if self._stored else span.context
            chunks.append(cut_chunks(extents, columns - rows - past))
            # Columns before a shorter context are never written again, in no layer.
            if past < max(pasts):
                self._scores[len(chunks) - 1, ..., : columns - rows - past] = MINUS_INFINITY
        self._context = self._parts(chunks, pool, workspace)

    def _parts(
        self, chunks: Sequence[Sequence[Chunk]], pool: KVPool, workspace: Workspace
    ) -> Sequence[ContextPart | SteppedPart]:
        """All stretches of all contexts; the first of a request begins its result where its own keys are stored."""
        scores, probabilities, result = self._scores, self._probabilities, self._out
        stepped = [
            SteppedPart(chunk, frames, scores, result, pool, workspace, first=self._stored and number == 0)
            for number, (chunk, frames) in enumerate(equal_steps(chunks))
        ]
        return stepped or [
            ContextPart(
                index,
                chunk,
                scores[index],
                probabilities[index],
                result[index],
                pool,
                workspace,
                first=self._stored and number == 0,
            )
            for index, one in enumerate(chunks)
            for number, chunk in enumerate(one)
        ]

    def bind(self, queries: F32, keys: F32, values: F32, out: F32) -> None:
        config, rows, count = self._config, self._rows, self._count
        kv, group, dim = config.num_kv_heads, config.group, config.head_dim
        here = slice(self._begin, self._begin + rows * count)
        # A kv head's query heads below each other; a copy only for several requests with several rows.
        ordered = queries[here].reshape(count, rows, kv, group, dim).transpose(0, 2, 3, 1, 4)
        self._queries = ordered.reshape(count, kv, rows * group, dim)
        self._copied: tuple[F32, F32] | None = None
        if not np.may_share_memory(self._queries, ordered):
            self._copied = self._queries.reshape(ordered.shape), ordered
        self._scoring = [(self._queries[part.index], part.keys, part.score) for part in self._context]
        self._own_keys = keys[here].reshape(count, rows, kv, dim).transpose(0, 2, 3, 1)
        self._own_values = values[here].reshape(count, rows, kv, dim).transpose(0, 2, 1, 3)
        self._out_rows = out[here].reshape(count, rows, kv, group, dim)

    def __call__(self, layer: int) -> None:
        scores, probabilities = self._scores, self._probabilities
        if self._copied is not None:
            np.copyto(*self._copied)
        if not self._stored:
            np.matmul(self._queries, self._own_keys, out=self._own_scores)
        for queries, keys, score in self._scoring:
            np.matmul(queries, keys[layer], out=score)
        if self._mask is not None:
            np.add(self._own_scores, self._mask, out=self._own_scores)
        if self._bounded:
            np.exp(scores, out=probabilities)
        else:
            np.maximum.reduce(scores, axis=-1, keepdims=True, out=self._peak)
            np.subtract(scores, self._peak, out=probabilities)
            np.exp(probabilities, out=probabilities)
        if self._ones is None:
            np.add.reduce(probabilities, axis=-1, keepdims=True, out=self._peak)
        else:
            np.matmul(probabilities, self._ones, out=self._sums)
        if self._round is not None:
            self._round(probabilities)
        if not self._stored:
            np.matmul(self._own_probabilities, self._own_values, out=self._out)
        for part in self._context:
            np.matmul(part.probability, part.values[layer], out=part.product)
            if part.unfinished:
                part.finish()
        np.divide(self._out_by_row, self._peak_by_row, out=self._out_rows)


def _stack_masks(masks: Sequence[F32 | None], rows: int, config: DecoderConfig) -> F32 | None:
    """[count, kv heads, query heads of a kv head * rows, rows], or None when no request has a mask."""
    present = [mask for mask in masks if mask is not None]
    if rows == 1 or not present:
        return None
    kv, group = config.num_kv_heads, config.group
    stacked = np.empty((len(present), kv, group, rows, rows), dtype=np.float32)
    for index, mask in enumerate(present):
        stacked[index] = mask
    return stacked.reshape(len(present), kv, group * rows, rows)
