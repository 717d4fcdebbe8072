"""Attention over a paged pool, reading contiguous extents as views wherever rows are few.

A pass holds rows of several requests. Requests with few rows each (decoding, verifying, drafting) and similar
context length form a group with one padded score buffer, so that the softmax of the group is a handful of calls.
The rows' own keys (one token, a draft tree, a drafter's block) fill the last columns, the context those before, so that
the padding of shorter contexts comes first. A draft tree's own keys are read back from the pool, where they mostly
continue the context: one product serves both. Long pieces of a prompt gather their keys once a layer and go block by
block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from .arrays import F32
from .checkpoint import DecoderConfig
from .kv_pool import FRAME, KVPool
from .numerics import Numerics
from .slots import Extent, merge_extents
from .workspace import Workspace

GROUP_ROWS = 64
"""Requests with at most this many rows in a pass are handled in groups."""
BLOCK_ROWS = 64
"""Query rows of a prompt handled at once."""
SAFE_SCORE = 60.0
"""Sums of exp over any context stay far inside float32 up to this score."""
MINUS_INFINITY = np.float32(-np.inf)


class Kernel(Protocol):
    """Attention of some rows of one pass."""

    def bind(self, queries: F32, keys: F32, values: F32, out: F32) -> None:
        """Name the arrays of all rows that every layer fills anew and, for ``out``, reads."""

    def __call__(self, layer: int) -> None:
        """Mix the layer's values."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """The rows of one request in a pass.

    ``context`` are the extents of the tokens before the rows, ``own`` those of the rows themselves where their keys
    are in the pool before attention reads them (long prompt pieces need them, draft trees gain by them).
    """

    begin: int
    rows: int
    context: Sequence[Extent]
    own: Sequence[Extent] = ()

    @property
    def past(self) -> int:
        return sum(end - begin for begin, end in self.context)


def plan_attention(
    spans: Sequence[RowSpan],
    masks: Sequence[F32 | None],
    pool: KVPool,
    config: DecoderConfig,
    numerics: Numerics,
    workspace: Workspace,
    *,
    bounded: bool = False,
) -> list[Kernel]:
    """Kernels that together cover all spans.

    queries are [rows, heads, head_dim] (rotated, scaled), keys and values [rows, kv_heads, head_dim], out
    [rows, heads, head_dim], all for the whole pass. ``masks`` holds one additive [rows, rows] array per span, or
    None where the rows see each other freely (a drafter's block), or only themselves (one row). Spans with more than
    GROUP_ROWS rows are causal and take no mask.

    ``bounded`` promises that no score exceeds SAFE_SCORE in absolute value; the softmax then needs no shift.

    Spans must be ordered by ``begin`` without gaps.
    """
    kernels: list[Kernel] = []
    group: list[int] = []
    key: tuple[int, int, bool, bool] | None = None

    def close() -> None:
        if group:
            kernels.append(
                GroupKernel(
                    [spans[i] for i in group],
                    [masks[i] for i in group],
                    pool,
                    config,
                    numerics,
                    workspace,
                    bounded,
                )
            )
            group.clear()

    for index, span in enumerate(spans):
        if span.rows > GROUP_ROWS:
            close()
            key = None
            kernels.append(BlockKernel(span, pool, config, numerics, workspace, bounded))
            continue
        this = (span.rows, (span.past >> 6).bit_length(), masks[index] is None, not span.own)
        if this != key:
            close()
            key = this
        group.append(index)
    close()
    return kernels


class _Chunk(NamedTuple):
    """Context columns offset .. stop - 1 of one request: whole frames, or a part of one frame."""

    offset: int
    stop: int
    frame: int
    frames: int
    begin: int
    end: int


def _chunks(extents: Sequence[Extent], offset: int) -> list[_Chunk]:
    """Cut extents at frame borders; neighbouring whole frames stay together."""
    found: list[_Chunk] = []
    for begin, end in extents:
        while begin < end:
            frame, start = divmod(begin, FRAME)
            whole = (end - begin) // FRAME if start == 0 else 0
            if whole:
                size = whole * FRAME
                found.append(_Chunk(offset, offset + size, frame, whole, 0, FRAME))
            else:
                size = min(FRAME - start, end - begin)
                found.append(_Chunk(offset, offset + size, frame, 1, start, start + size))
            begin += size
            offset += size
    return found


class _ContextPart:
    """Views for one chunk of one request, prepared once a pass."""

    __slots__ = (
        "_first",
        "_many",
        "_result",
        "index",
        "keys",
        "probability",
        "product",
        "score",
        "unfinished",
        "values",
    )

    def __init__(
        self,
        index: int,
        chunk: _Chunk,
        scores: F32,
        probabilities: F32,
        result: F32,
        pool: KVPool,
        workspace: Workspace,
        *,
        first: bool,
    ) -> None:
        """``index`` is the request's in its group. ``first``: nothing is in the result yet.

        score = queries @ keys[layer] and product = probability @ values[layer] are the products of a layer.
        """
        kv, tall, dim = result.shape
        self.index = index
        self._first = first
        self._many = chunk.frames > 1
        self.unfinished = self._many or not first
        columns = slice(chunk.offset, chunk.stop)
        self.score, self.probability = scores[:, :, columns], probabilities[:, :, columns]
        self.product = self._result = result
        if self._many:
            split = (kv, tall, chunk.frames, FRAME)
            self.score = self.score.reshape(split).transpose(2, 0, 1, 3)
            self.probability = self.probability.reshape(split).transpose(2, 0, 1, 3)
            frames = slice(chunk.frame, chunk.frame + chunk.frames)
            self.keys, self.values = pool.keys[:, frames], pool.values[:, frames]
            self.product = workspace.share("attention_frames", (chunk.frames, kv, tall, dim))
        else:
            self.keys = pool.keys[:, chunk.frame, :, :, chunk.begin : chunk.end]
            self.values = pool.values[:, chunk.frame, :, chunk.begin : chunk.end]
            if not first:
                self.product = workspace.share("attention_part", (kv, tall, dim))

    def finish(self) -> None:
        """Bring the product to the request's result, where it was not written there."""
        if self._first:
            np.add.reduce(self.product, axis=0, out=self._result)
        elif self._many:
            np.add(self._result, np.add.reduce(self.product, axis=0), out=self._result)
        else:
            np.add(self._result, self.product, out=self._result)


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
        self._context: list[_ContextPart] = []
        for index, (span, past) in enumerate(zip(spans, pasts, strict=True)):
            padding = columns - rows - past
            extents = merge_extents([*span.context, *span.own]) if self._stored else span.context
            for number, chunk in enumerate(_chunks(extents, padding)):
                part = _ContextPart(
                    index,
                    chunk,
                    self._scores[index],
                    self._probabilities[index],
                    self._out[index],
                    pool,
                    workspace,
                    first=self._stored and number == 0,
                )
                self._context.append(part)
            # Columns before a shorter context are never written again, in no layer.
            if padding:
                self._scores[index, :, :, :padding] = MINUS_INFINITY

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


class BlockKernel:
    """Causal attention of a long piece of one prompt; its keys are in the pool already."""

    def __init__(
        self,
        span: RowSpan,
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
        self._chunks = _chunks([*span.context, *span.own], 0)
        kv, group, dim = config.num_kv_heads, config.group, config.head_dim
        tall, columns = min(BLOCK_ROWS, span.rows) * group, self._past + span.rows
        self._keys = workspace.share("block_keys", (kv, dim, columns))
        self._values = workspace.share("block_values", (kv, columns, dim))
        self._scores = workspace.share("block_scores", (kv * tall * columns,))
        self._queries = workspace.share("block_queries", (kv * tall * dim,))
        self._out = workspace.share("block_out", (kv * tall * dim,))
        self._peak = workspace.share("block_peak", (kv * tall,))
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
        tall, columns = rows * group, self._past + high
        here = slice(self._span.begin + low, self._span.begin + high)
        q = self._queries[: kv * tall * dim].reshape(kv, rows, group, dim)
        q[...] = queries[here].reshape(rows, kv, group, dim).transpose(1, 0, 2, 3)
        scores = self._scores[: kv * tall * columns].reshape(kv, tall, columns)
        result = self._out[: kv * tall * dim].reshape(kv, tall, dim)
        peak = self._peak[: kv * tall].reshape(kv, tall, 1)
        np.matmul(q.reshape(kv, tall, dim), self._keys[:, :, :columns], out=scores)
        diagonal = scores.reshape(kv, rows, group, columns)[..., columns - rows :]
        np.add(diagonal, self._causal[:rows, :, :rows], out=diagonal)
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
