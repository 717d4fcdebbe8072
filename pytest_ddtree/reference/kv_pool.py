"""The key-value memory of one model: one slot a token, shared by all requests.

Slots are grouped in frames of FRAME neighbours. A frame holds its keys with the slot as the last axis (a score product
then reads rows of memory and needs no transposed packing) and its values with the slot before the channel. A frame's layers
follow each other in memory, so that what a few tokens touch stays together. The arrays are reserved once; the
operating system backs pages on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .arrays import F32, I64

FRAME = 384
"""Slots in a frame. Few frames a context mean few products; the keys' rows must not lie a power of two apart, or a token's
keys, one in each row, would fall on a few sets of the first-level cache."""
FEW_ROWS = 16
"""Up to so many slots are cheaper to go through one by one than with array calls."""
FEW_MOVES = 4
"""Likewise for moves."""
_NONE = np.empty(0, dtype=np.int64)


class Run(NamedTuple):
    """Rows first .. last - 1 go to the neighbouring slots begin .. of one frame."""

    frame: int
    begin: int
    end: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Places:
    """Where the rows of a pass are stored: as runs where that is few, else one by one (frames and offsets)."""

    runs: tuple[Run, ...]
    frames: I64
    offsets: I64


def places(slots: I64) -> Places:
    """Group the rows' slots into runs of neighbours inside a frame."""
    if len(slots) <= FEW_ROWS:
        runs = _runs(slots.tolist())
        if _worthwhile(len(runs), len(slots)):
            return Places(runs, _NONE, _NONE)
    frames, offsets = np.divmod(slots, FRAME)
    cuts = np.flatnonzero((np.diff(slots) != 1) | (np.diff(frames) != 0)) + 1
    if not _worthwhile(len(cuts) + 1, len(slots)):
        return Places((), frames, offsets)
    bounds = [0, *cuts.tolist(), len(slots)]
    runs = tuple(
        Run(int(frames[first]), int(offsets[first]), int(offsets[first]) + last - first, first, last)
        for first, last in pairwise(bounds)
        if last > first
    )
    return Places(runs, frames, offsets)


def _worthwhile(runs: int, slots: int) -> bool:
    return 3 * runs <= slots or slots <= 2


def _runs(slots: Sequence[int]) -> tuple[Run, ...]:
    runs: list[Run] = []
    first = 0
    for row in range(1, len(slots) + 1):
        if row == len(slots) or slots[row] != slots[row - 1] + 1 or slots[row] % FRAME == 0:
            frame, begin = divmod(slots[first], FRAME)
            runs.append(Run(frame, begin, begin + row - first, first, row))
            first = row
    return tuple(runs)


class KVPool:
    """keys [layers, frames, kv_heads, head_dim, FRAME], values [layers, frames, kv_heads, FRAME, head_dim].

    Both are views; in memory the frame is the outermost axis.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, slots: int) -> None:
        frames = -(-slots // FRAME)
        self.slots = slots
        self.keys: F32 = np.zeros((frames, layers, kv_heads, head_dim, FRAME), dtype=np.float32).swapaxes(
            0, 1
        )
        self.values: F32 = np.zeros((frames, layers, kv_heads, FRAME, head_dim), dtype=np.float32).swapaxes(
            0, 1
        )

    def write(self, layer: int, where: Places, keys: F32, values: F32) -> None:
        """Store rows of one layer; keys and values are [rows, kv_heads, head_dim]."""
        if where.runs:
            for run in where.runs:
                self.keys[layer, run.frame, :, :, run.begin : run.end] = keys[run.first : run.last].transpose(
                    1, 2, 0
                )
                self.values[layer, run.frame, :, run.begin : run.end] = values[
                    run.first : run.last
                ].transpose(1, 0, 2)
            return
        self.keys[layer][where.frames, :, :, where.offsets] = keys
        self.values[layer][where.frames, :, where.offsets] = values

    def write_all(self, slots: I64, keys: F32, values: F32) -> None:
        """Store rows of all layers; keys and values are [layers, kv_heads, rows, head_dim]."""
        if len(slots) > FEW_ROWS:
            frames, offsets = np.divmod(slots, FRAME)
            self.keys[:, frames, :, :, offsets] = keys.transpose(2, 0, 1, 3)
            self.values[:, frames, :, offsets] = values.transpose(2, 0, 1, 3)
            return
        for row, slot in enumerate(slots.tolist()):
            frame, offset = divmod(slot, FRAME)
            self.keys[:, frame, :, :, offset] = keys[:, :, row]
            self.values[:, frame, :, offset] = values[:, :, row]

    def move(self, source: I64, target: I64) -> None:
        """Copy slots in all layers; all sources are read before any target is written."""
        if len(source) <= FEW_MOVES:
            self._move_few(source.tolist(), target.tolist())
            return
        from_frames, from_offsets = np.divmod(source, FRAME)
        to_frames, to_offsets = np.divmod(target, FRAME)
        self.keys[:, to_frames, :, :, to_offsets] = self.keys[:, from_frames, :, :, from_offsets]
        self.values[:, to_frames, :, to_offsets] = self.values[:, from_frames, :, from_offsets]

    def _move_few(self, source: Sequence[int], target: Sequence[int]) -> None:
        columns = []
        for slot in source:
            frame, offset = divmod(slot, FRAME)
            columns.append(
                (self.keys[:, frame, :, :, offset].copy(), self.values[:, frame, :, offset].copy())
            )
        for slot, (keys, values) in zip(target, columns, strict=True):
            frame, offset = divmod(slot, FRAME)
            self.keys[:, frame, :, :, offset] = keys
            self.values[:, frame, :, offset] = values
