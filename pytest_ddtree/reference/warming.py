"""Reading the weights ahead of the first draft steps of an answer.

Between two steps of a draft tree pass some milliseconds, in which the neighbours on a shared host push part of the weights
out of the last-level cache. What comes back from memory is taken in again only after it was read several times in
quick succession. Plain decoding does that by itself within three tokens; steps of a draft tree, which come less often,
needed a dozen. Reading one word of every cache line costs a fraction of a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from .arena import Arena
from .arrays import I64

MOST_PASSES = 3
WARM = 1.15
"""A pass within so much of the fastest one finds everything in the cache."""
FIRST_PASSES = 5
"""Passes that show how fast reading from the cache is."""


class Warmer:
    """Reads all weights until that is as fast as it ever was, three times at most.

    One engine thread uses it. It changes nothing but what the caches hold.
    """

    def __init__(self, arenas: Sequence[Arena], *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._lines: list[I64] = [lines for arena in arenas for lines in arena.lines()]
        self._clock = clock
        self._fastest = min(self._read() for _ in range(FIRST_PASSES))

    def __call__(self) -> int:
        """Read the weights; returns the number of passes."""
        for passes in range(1, MOST_PASSES + 1):
            seconds = self._read()
            warm = seconds <= WARM * self._fastest
            self._fastest = min(self._fastest, seconds)
            if warm:
                return passes
        return MOST_PASSES

    def _read(self) -> float:
        began = self._clock()
        for lines in self._lines:
            np.add.reduce(lines)
        return self._clock() - began
