"""Stretches of a context as views of the pool, and the two products of each with a layer's queries.

Requests of one length whose tokens lie in frames at equal distances, as they do when they came together, share their
products: one call instead of one a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .arrays import F32
from .kv_pool import FRAME, KVPool
from .slots import Extent
from .workspace import Workspace

MINUS_INFINITY = np.float32(-np.inf)
"""The score of a key that a row does not see."""


class Chunk(NamedTuple):
    """Context columns offset .. stop - 1 of one request: whole frames, or a part of one frame."""

    offset: int
    stop: int
    frame: int
    frames: int
    begin: int
    end: int


def cut_chunks(extents: Sequence[Extent], offset: int) -> list[Chunk]:
    """Cut extents at frame borders; neighbouring whole frames stay together."""
    found: list[Chunk] = []
    for begin, end in extents:
        while begin < end:
            frame, start = divmod(begin, FRAME)
            whole = (end - begin) // FRAME if start == 0 else 0
            if whole:
                size = whole * FRAME
                found.append(Chunk(offset, offset + size, frame, whole, 0, FRAME))
            else:
                size = min(FRAME - start, end - begin)
                found.append(Chunk(offset, offset + size, frame, 1, start, start + size))
            begin += size
            offset += size
    return found


class ContextPart:
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
        chunk: Chunk,
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


class SteppedPart:
    """One chunk of every request of a group, all of the same shape and in frames at equal distances."""

    __slots__ = ("_result", "index", "keys", "probability", "product", "score", "unfinished", "values")

    def __init__(
        self,
        chunk: Chunk,
        frames: slice,
        scores: F32,
        result: F32,
        pool: KVPool,
        workspace: Workspace,
        *,
        first: bool,
    ) -> None:
        """As :class:`ContextPart`; nothing is padded, so that scores become probabilities in place."""
        self.index = slice(None)
        self.score = self.probability = scores[..., chunk.offset : chunk.stop]
        self.keys = pool.keys[:, frames, :, :, chunk.begin : chunk.end]
        self.values = pool.values[:, frames, :, chunk.begin : chunk.end]
        self.unfinished = not first
        self._result = result
        self.product = result if first else workspace.share("attention_stepped", result.shape)

    def finish(self) -> None:
        """Add the product to the result."""
        np.add(self._result, self.product, out=self._result)


def equal_steps(chunks: Sequence[Sequence[Chunk]]) -> list[tuple[Chunk, slice]]:
    """The chunks of all requests, number by number, where they differ by a constant step of frames; else nothing."""
    if len(chunks) < 2 or any(len(one) != len(chunks[0]) for one in chunks):
        return []
    found: list[tuple[Chunk, slice]] = []
    for same in zip(*chunks, strict=True):
        first, last = same[0], same[-1]
        step = same[1].frame - first.frame
        if step <= 0 or first.frames > 1:
            return []
        if any(one != first._replace(frame=first.frame + step * index) for index, one in enumerate(same)):
            return []
        found.append((first, slice(first.frame, last.frame + 1, step)))
    return found
