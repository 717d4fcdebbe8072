"""Pages, slot tables, the prefix cache and what ties them together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pytest_ddtree.reference.allocator import OutOfPages, PageAllocator
from pytest_ddtree.reference.kv_pool import FRAME, KVPool, places
from pytest_ddtree.reference.memory import KVMemory
from pytest_ddtree.reference.slots import SlotTable, extents_of


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=60), st.integers(1, 4))
def test_allocator_never_hands_a_page_out_twice(actions, align):
    allocator = PageAllocator(100, align=align, gap=5)
    held = []
    for take, amount in actions:
        if take:
            try:
                runs = allocator.allocate(amount)
            except OutOfPages:
                assert amount > allocator.free_pages
                continue
            assert sum(run.count for run in runs) == amount
            held += [(run.start, run.count) for run in runs]
        elif held:
            allocator.free(*held.pop(amount % len(held)))
        pages = [page for start, count in held for page in range(start, start + count)]
        assert len(pages) == len(set(pages)) == 100 - allocator.free_pages
        allocator.check()


def test_allocator_grows_in_place():
    allocator = PageAllocator(1000, align=128, gap=50)
    first = allocator.allocate(10)[0]
    second = allocator.allocate(10)[0]
    assert second.start >= first.stop + 50
    assert allocator.allocate(20, after=first.stop)[0].start == first.stop


def test_double_free_is_noticed():
    allocator = PageAllocator(10)
    run = allocator.allocate(4)[0]
    allocator.free(run.start, 2)
    with pytest.raises(ValueError, match="free already"):
        allocator.free(run.start, run.count)
    with pytest.raises(ValueError, match="outside a pool"):
        allocator.free(8, 5)


@given(st.lists(st.integers(0, 40), unique=True, max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_slot_table_agrees_with_a_list(slots, low, high):
    array = np.asarray(slots, dtype=np.int64)
    table = SlotTable(extents_of(array))
    assert table.capacity == len(slots)
    assert table.slots(low, high).tolist() == slots[low:high]


@example(list(range(FRAME - 4, FRAME + 5)), 0)
@example([*range(2 * FRAME - 3, 2 * FRAME + 3), *range(5, 11)], 0)
@example(list(range(FRAME - 20, FRAME + 20)), 0)
@given(st.lists(st.integers(0, 3 * FRAME - 1), unique=True, min_size=1, max_size=40), st.integers(0, 2**31))
def test_pool_stores_rows_where_they_belong(slots, seed):
    pool = KVPool(2, 2, 4, 3 * FRAME)
    rng = np.random.default_rng(seed)
    array = np.asarray(slots, dtype=np.int64)
    keys = rng.standard_normal((len(slots), 2, 4), dtype=np.float32)
    values = rng.standard_normal((len(slots), 2, 4), dtype=np.float32)
    pool.write(1, places(array), keys, values)
    for row, slot in enumerate(slots):
        frame, offset = divmod(slot, FRAME)
        np.testing.assert_array_equal(pool.keys[1, frame, :, :, offset], keys[row])
        np.testing.assert_array_equal(pool.values[1, frame, :, offset], values[row])
    assert not pool.keys[0].any()
    both = np.stack([keys, keys + 1]), np.stack([values, values + 1])
    pool.write_all(array, both[0].swapaxes(1, 2), both[1].swapaxes(1, 2))
    for row, slot in enumerate(slots):
        frame, offset = divmod(slot, FRAME)
        np.testing.assert_array_equal(pool.keys[:, frame, :, :, offset], both[0][:, row])
        np.testing.assert_array_equal(pool.values[:, frame, :, offset], both[1][:, row])
    moved = np.roll(array, 1)
    before = pool.keys.copy()
    pool.move(array, moved)
    for source, target in zip(slots, moved.tolist(), strict=True):
        np.testing.assert_array_equal(
            pool.keys[:, target // FRAME, :, :, target % FRAME],
            before[:, source // FRAME, :, :, source % FRAME],
        )


class MemoryMachine(RuleBasedStateMachine):
    """Requests come, grow, publish and end in any order; no slot is ever lost or shared by accident."""

    page_size = 1

    def __init__(self):
        super().__init__()
        self.memory = KVMemory(64 * self.page_size, self.page_size, cache_enabled=True)
        self.live = []

    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=24))
    def start(self, tokens):
        array = np.asarray(tokens, dtype=np.int64)
        holding = self.memory.attach(array, len(tokens) - 1)
        assert holding.shared <= len(tokens) - 1
        assert holding.shared % self.page_size == 0
        try:
            self.memory.ensure(holding, len(tokens))
        except OutOfPages:
            self.memory.cache.unlock(holding.node)
            return
        self.live.append((holding, tokens))

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 100), more=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def grow(self, which, more):
        holding, tokens = self.live[which % len(self.live)]
        try:
            self.memory.ensure(holding, len(tokens) + len(more))
        except OutOfPages:
            return
        tokens.extend(more)

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 100))
    def publish(self, which):
        holding, tokens = self.live[which % len(self.live)]
        self.memory.publish(holding, np.asarray(tokens, dtype=np.int64))

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 100), keep=st.booleans())
    def end(self, which, keep):
        holding, tokens = self.live.pop(which % len(self.live))
        self.memory.release(holding, np.asarray(tokens if keep else [], dtype=np.int64))

    @precondition(lambda self: not self.live)
    @rule()
    def flush(self):
        self.memory.cache.reset()
        assert self.memory.free == self.memory.total

    @invariant()
    def books_balance(self):
        self.memory.pages.check()
        own = [
            slot
            for holding, _ in self.live
            for slot in holding.table.slots(holding.shared, holding.table.capacity)
        ]
        cached = self._cached_slots()
        assert len(set(own) | set(cached)) == len(own) + len(cached), "a slot has two owners"
        assert self.memory.free + len(own) + len(cached) == self.memory.total
        assert self.memory.cache.held == len(cached)
        for holding, _ in self.live:
            assert set(holding.table.slots(0, holding.shared).tolist()) <= set(cached)

    def _cached_slots(self):
        slots, stack = [], [self.memory.cache.root]
        while stack:
            node = stack.pop()
            slots += node.slots.tolist()
            stack.extend(node.children.values())
        return slots


class PagedMemoryMachine(MemoryMachine):
    page_size = 4


TestMemory = MemoryMachine.TestCase
TestPagedMemory = PagedMemoryMachine.TestCase


def test_a_prefix_is_found_again_and_evicted_when_needed():
    memory = KVMemory(16, 1, cache_enabled=True)
    tokens = np.arange(10, dtype=np.int64)
    first = memory.attach(tokens, 9)
    memory.ensure(first, 10)
    slots = first.table.slots(0, 10).tolist()
    memory.release(first, tokens)
    again = memory.attach(tokens, 9)
    assert again.shared == 9
    assert again.table.slots(0, 9).tolist() == slots[:9]
    other = memory.attach(np.arange(50, 60, dtype=np.int64), 9)
    with pytest.raises(OutOfPages):
        memory.ensure(other, 10)
    memory.release(again, tokens[:9])
    memory.ensure(other, 10)
    assert memory.cache.held == 0
    assert memory.free == 6


def test_disabled_cache_keeps_nothing():
    memory = KVMemory(16, 1, cache_enabled=False)
    tokens = np.arange(10, dtype=np.int64)
    holding = memory.attach(tokens, 9)
    memory.ensure(holding, 10)
    memory.publish(holding, tokens)
    memory.release(holding, tokens)
    assert memory.free == 16
    assert memory.attach(tokens, 9).shared == 0
