"""Where a request's tokens lie in the pool: the indirection from logical position to slot."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .arrays import I64

Extent = tuple[int, int]
"""Slots begin .. end - 1, in logical order."""


def merge_extents(extents: Iterable[Extent]) -> list[Extent]:
    """Join extents that follow each other; empty ones vanish."""
    merged: list[Extent] = []
    for begin, end in extents:
        if begin == end:
            continue
        if merged and merged[-1][1] == begin:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return merged


def extents_of(slots: I64) -> list[Extent]:
    """The extents that list these slots in this order."""
    if not len(slots):
        return []
    cuts = np.flatnonzero(np.diff(slots) != 1) + 1
    begins = slots[np.concatenate([[0], cuts])]
    ends = slots[np.concatenate([cuts - 1, [len(slots) - 1]])] + 1
    return [(int(begin), int(end)) for begin, end in zip(begins, ends, strict=True)]


class SlotTable:
    """Extents of one request, position 0 first."""

    __slots__ = ("capacity", "extents")

    def __init__(self, extents: Iterable[Extent] = ()) -> None:
        self.extents = merge_extents(extents)
        self.capacity = sum(end - begin for begin, end in self.extents)

    def append(self, begin: int, end: int) -> None:
        """Add slots for the positions from ``capacity`` on."""
        if self.extents and self.extents[-1][1] == begin:
            self.extents[-1] = (self.extents[-1][0], end)
        else:
            self.extents.append((begin, end))
        self.capacity += end - begin

    @property
    def end(self) -> int | None:
        """The slot behind the last one, where growth would be contiguous."""
        return self.extents[-1][1] if self.extents else None

    def clip(self, low: int, high: int) -> list[Extent]:
        """Extents of the positions low .. high - 1."""
        clipped: list[Extent] = []
        position = 0
        for begin, end in self.extents:
            length = end - begin
            first, last = max(low - position, 0), min(high - position, length)
            if first < last:
                clipped.append((begin + first, begin + last))
            position += length
            if position >= high:
                break
        return clipped

    def slots(self, low: int, high: int) -> I64:
        """Slots of the positions low .. high - 1."""
        parts = [np.arange(begin, end, dtype=np.int64) for begin, end in self.clip(low, high)]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
