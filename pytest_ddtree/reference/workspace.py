"""Scratch memory that is allocated once and reused by every pass."""

from __future__ import annotations

from math import prod

import numpy as np

from .arrays import F32


class Workspace:
    """Named float32 buffers that grow to the largest shape asked for."""

    def __init__(self) -> None:
        self._buffers: dict[str, F32] = {}
        self._used: dict[str, int] = {}

    def mark(self) -> None:
        """Start a new pass: all memory is free again."""
        self._used.clear()

    def take(self, name: str, shape: tuple[int, ...]) -> F32:
        """A contiguous array of this shape, contents undefined; every call of a pass gets memory of its own."""
        count = self._used.get(name, 0)
        self._used[name] = count + 1
        return self.share(f"{name}.{count}", shape)

    def share(self, key: str, shape: tuple[int, ...]) -> F32:
        """A contiguous array of this shape, contents undefined; calls with one name share memory."""
        size = prod(shape)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.size < size:
            buffer = self._buffers[key] = np.empty(max(size, 1024), dtype=np.float32)
        return buffer[:size].reshape(shape)
