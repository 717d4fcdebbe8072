"""Slots for requests: pages from the allocator, prefixes from the cache, eviction when pages run out."""

from __future__ import annotations

import numpy as np

from .allocator import OutOfPages, PageAllocator
from .arrays import I64
from .kv_pool import FRAME
from .prefix_cache import Node, PrefixCache
from .slots import SlotTable, extents_of

GAP_SLOTS = 256
"""Slots left free behind a neighbour where there is plenty of room, for its answer."""


class Holding:
    """What one request holds: its slot table; the first ``shared`` positions belong to the prefix cache."""

    __slots__ = ("node", "shared", "table")

    def __init__(self, table: SlotTable, shared: int, node: Node) -> None:
        self.table = table
        self.shared = shared
        self.node = node


class KVMemory:
    """Book-keeping of the pool's slots; it never touches keys or values."""

    def __init__(self, slots: int, page_size: int, *, cache_enabled: bool) -> None:
        self.page_size = page_size
        self.pages = PageAllocator(
            slots // page_size, align=max(FRAME // page_size, 1), gap=-(-GAP_SLOTS // page_size)
        )
        self.cache = PrefixCache(page_size, self._free_slots, enabled=cache_enabled)

    @property
    def total(self) -> int:
        """Slots of the pool, in tokens."""
        return self.pages.pages * self.page_size

    @property
    def free(self) -> int:
        return self.pages.free_pages * self.page_size

    @property
    def available(self) -> int:
        """Slots that are free or can be evicted."""
        return self.free + self.cache.evictable

    @property
    def used(self) -> int:
        """Slots that running requests keep from everybody else."""
        return self.total - self.available

    def attach(self, tokens: I64, limit: int) -> Holding:
        """Start a request on the longest cached prefix of ``tokens[:limit]``."""
        slots, node = self.cache.match(tokens[:limit])
        self.cache.lock(node)
        return Holding(SlotTable(extents_of(slots)), len(slots), node)

    def ensure(self, holding: Holding, capacity: int) -> None:
        """Grow to at least ``capacity`` positions, evicting cached prefixes if needed.

        Raises:
            OutOfPages: not enough even after eviction; nothing changed.
        """
        missing = capacity - holding.table.capacity
        if missing <= 0:
            return
        pages = -(-missing // self.page_size)
        if pages > self.pages.free_pages:
            if pages * self.page_size > self.available:
                raise OutOfPages(f"{pages} pages wanted, {self.available // self.page_size} can be had")
            self.cache.evict((pages - self.pages.free_pages) * self.page_size)
        end = holding.table.end
        for run in self.pages.allocate(pages, after=None if end is None else end // self.page_size):
            holding.table.append(run.start * self.page_size, run.stop * self.page_size)

    def publish(self, holding: Holding, tokens: I64) -> None:
        """Let others share the whole pages of ``tokens``, whose keys are all in place; the request keeps running."""
        length = self._whole(len(tokens))
        if not self.cache.enabled or length <= holding.shared:
            return
        self._give(holding, tokens[:length])
        slots, node = self.cache.match(tokens[:length])
        rest = holding.table.clip(length, holding.table.capacity)
        holding.table = SlotTable([*extents_of(slots), *rest])
        self.cache.lock(node)
        self.cache.unlock(holding.node)
        holding.node, holding.shared = node, length

    def release(self, holding: Holding, tokens: I64) -> None:
        """End a request. ``tokens`` are those whose keys are valid; they stay cached as far as pages are whole."""
        keep = self._whole(len(tokens)) if self.cache.enabled else 0
        if keep > holding.shared:
            self._give(holding, tokens[:keep])
        self._free_slots(holding.table.slots(max(keep, holding.shared), holding.table.capacity))
        self.cache.unlock(holding.node)
        holding.table, holding.shared, holding.node = SlotTable(), 0, self.cache.root

    def _give(self, holding: Holding, tokens: I64) -> None:
        slots = holding.table.slots(0, len(tokens))
        known = self.cache.insert(tokens, slots)
        self._free_slots(slots[holding.shared : known])

    def _whole(self, length: int) -> int:
        return length - length % self.page_size

    def _free_slots(self, slots: I64) -> None:
        if not len(slots):
            return
        for begin, end in extents_of(np.sort(slots)):
            self.pages.free(begin // self.page_size, (end - begin) // self.page_size)
