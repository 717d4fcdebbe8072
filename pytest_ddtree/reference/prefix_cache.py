"""Keys and values of finished work, found again by a shared prefix of tokens: a radix tree over token ids.

A node holds the tokens of its edge and their slots. Nodes on the path of a running request are locked; unlocked
leaves are evicted, least recently used first. Edges are cut at page borders only.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import numpy as np

from .arrays import I64


class Node:
    __slots__ = ("children", "key", "locks", "parent", "slots", "used")

    def __init__(self, parent: Node | None, key: I64, slots: I64) -> None:
        self.parent = parent
        self.key = key
        self.slots = slots
        self.children: dict[bytes, Node] = {}
        self.locks = 0
        self.used = 0


class PrefixCache:
    """Owns the slots it was given until it evicts or resets them through ``free``.

    ``free(slots)`` is called with whole pages, in slot order of the evicted tokens.
    """

    def __init__(self, page_size: int, free: Callable[[I64], None], *, enabled: bool = True) -> None:
        self.page_size = page_size
        self.enabled = enabled
        self._free = free
        self._clock = count(1)
        self._root = Node(None, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
        self._root.locks = 1
        self.evictable = 0
        self.held = 0

    @property
    def root(self) -> Node:
        return self._root

    def match(self, tokens: I64) -> tuple[I64, Node]:
        """Slots of the longest cached prefix of ``tokens`` (whole pages) and the node where it ends."""
        if not self.enabled:
            return np.empty(0, dtype=np.int64), self._root
        node, found, position = self._root, [], 0
        now = next(self._clock)
        node.used = now
        while position + self.page_size <= len(tokens):
            child = node.children.get(self._first_page(tokens, position))
            if child is None:
                break
            child.used = now
            shared = self._shared(child.key, tokens[position:])
            if shared < len(child.key):
                child = self._cut(child, shared)
                found.append(child.slots)
                node = child
                break
            found.append(child.slots)
            position += shared
            node = child
        return (np.concatenate(found) if found else np.empty(0, dtype=np.int64)), node

    def insert(self, tokens: I64, slots: I64) -> int:
        """Hand over the slots of ``tokens``; returns how many leading tokens were cached already.

        The slots of those stay the caller's (it frees its duplicates); the tree owns the rest. Both arrays must have
        the same length, a multiple of the page size.
        """
        node, position = self._root, 0
        now = next(self._clock)
        while position < len(tokens):
            node.used = now
            child = node.children.get(self._first_page(tokens, position))
            if child is None:
                leaf = Node(node, tokens[position:].copy(), slots[position:].copy())
                leaf.used = now
                node.children[self._first_page(tokens, position)] = leaf
                self.evictable += len(leaf.key)
                self.held += len(leaf.key)
                return position
            child.used = now
            shared = self._shared(child.key, tokens[position:])
            if shared < len(child.key):
                child = self._cut(child, shared)
            position += shared
            node = child
        return position

    def lock(self, node: Node) -> None:
        """Keep the path to ``node`` until it is unlocked as often."""
        while node.parent is not None:
            if node.locks == 0:
                self.evictable -= len(node.key)
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self.evictable += len(node.key)
            node = node.parent

    def evict(self, tokens: int) -> None:
        """Free at least ``tokens`` slots of unlocked leaves if there are as many."""
        leaves = [(leaf.used, id(leaf), leaf) for leaf in self._leaves() if leaf.locks == 0]
        heapq.heapify(leaves)
        freed = 0
        while leaves and freed < tokens:
            _, _, leaf = heapq.heappop(leaves)
            parent = leaf.parent
            assert parent is not None
            self._free(leaf.slots)
            freed += len(leaf.key)
            self.evictable -= len(leaf.key)
            self.held -= len(leaf.key)
            del parent.children[self._first_page(leaf.key, 0)]
            if not parent.children and parent.locks == 0:
                heapq.heappush(leaves, (parent.used, id(parent), parent))

    def reset(self) -> None:
        """Forget everything; only legal while nothing is locked."""
        if self.held != self.evictable:
            raise RuntimeError("a prefix cache with locked nodes cannot be reset")
        self.evict(self.held)

    def _leaves(self) -> list[Node]:
        leaves: list[Node] = []
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            if node.children:
                stack.extend(node.children.values())
            else:
                leaves.append(node)
        return leaves

    def _first_page(self, tokens: I64, position: int) -> bytes:
        return tokens[position : position + self.page_size].tobytes()

    def _shared(self, key: I64, tokens: I64) -> int:
        """Length of the common prefix, in whole pages."""
        length = min(len(key), len(tokens))
        different = np.flatnonzero(key[:length] != tokens[:length])
        same = int(different[0]) if len(different) else length
        return same - same % self.page_size

    def _cut(self, node: Node, length: int) -> Node:
        """Split the node's edge; returns the new upper part."""
        parent = node.parent
        assert parent is not None
        upper = Node(parent, node.key[:length], node.slots[:length])
        upper.locks, upper.used = node.locks, node.used
        parent.children[self._first_page(node.key, 0)] = upper
        node.key, node.slots, node.parent = node.key[length:], node.slots[length:], upper
        upper.children[self._first_page(node.key, 0)] = node
        return upper
