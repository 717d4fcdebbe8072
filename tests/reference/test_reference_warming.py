"""Reading the weights ahead: every line is read, and as often as it pays."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from pytest_ddtree.reference.arena import CACHE_LINE, CHUNK_BYTES, Arena
from pytest_ddtree.reference.warming import FIRST_PASSES, MOST_PASSES, Warmer


def clock_of(durations: list[float]) -> Iterator[float]:
    """What a clock says before and after each of the passes."""
    now = 0.0
    for seconds in durations:
        yield now
        now += seconds
        yield now


@pytest.mark.parametrize(
    ("first", "later", "passes"),
    [
        ([2.0, 1.5, 1.0, 1.0, 1.0], [1.1], 1),
        ([2.0, 1.5, 1.0, 1.0, 1.0], [2.0, 1.1], 2),
        ([2.0, 1.5, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0], MOST_PASSES),
        # A machine whose caches do not hold the weights: no pass is ever better, one is enough.
        ([2.0] * FIRST_PASSES, [2.0], 1),
    ],
)
def test_weights_are_read_until_they_are_warm(first, later, passes):
    arena = Arena()
    arena.place(np.ones(100, dtype=np.float32))
    ticks = clock_of(first + later)
    warm = Warmer([arena], clock=lambda: next(ticks))
    assert warm() == passes
    assert next(ticks, None) is None


def test_every_line_of_an_arena_is_listed_once():
    arena = Arena()
    placed = [
        arena.place(np.full(size, number, dtype=np.float32))
        for number, size in enumerate((3, CHUNK_BYTES // 16, CHUNK_BYTES // 5, 40, CHUNK_BYTES // 2))
    ]
    spans = [(lines.ctypes.data, lines.ctypes.data + len(lines) * CACHE_LINE) for lines in arena.lines()]
    assert all(last <= first for (_, last), (first, _) in pairwise(sorted(spans)))
    assert all(lines.strides == (CACHE_LINE,) for lines in arena.lines())
    for array in placed:
        begin, end = array.ctypes.data, array.ctypes.data + array.nbytes
        # Less than one line at the very end may be left out.
        covered = sum(max(0, min(end, last) - max(begin, first)) for first, last in spans)
        assert end - begin - covered < CACHE_LINE
