"""Weights side by side in large arrays.

NumPy asks the operating system for huge pages for arrays of several megabytes only. A decoder's matrices are smaller
than that one by one, and a decode step reads all of them: on small pages it would miss the address cache all the time.
"""

from __future__ import annotations

import numpy as np

from .arrays import F32, I64

CHUNK_BYTES = 32 << 20
CACHE_LINE = 64


class Arena:
    """Copies arrays into chunks of memory, each at the start of a cache line."""

    def __init__(self) -> None:
        self._chunk = np.empty(0, dtype=np.uint8)
        self._used = 0
        self._full: list[I64] = []

    def lines(self) -> list[I64]:
        """One word of every cache line that is in use, chunk by chunk; views."""
        return [*self._full, *self._words()]

    def _words(self) -> list[I64]:
        used = self._chunk[: self._used - self._used % CACHE_LINE]
        return [used.view(np.int64)[:: CACHE_LINE // 8]] if used.size else []

    def place(self, values: F32) -> F32:
        """A contiguous copy of ``values`` inside the arena."""
        size = values.size * 4
        begin = self._aligned()
        if begin + size > self._chunk.size:
            self._full += self._words()
            self._chunk = np.empty(max(CHUNK_BYTES, size + CACHE_LINE), dtype=np.uint8)
            self._used = 0
            begin = self._aligned()
        self._used = begin + size
        placed = self._chunk[begin : begin + size].view(np.float32).reshape(values.shape)
        placed[...] = values
        return placed

    def _aligned(self) -> int:
        return self._used + -(self._chunk.ctypes.data + self._used) % CACHE_LINE
