"""Reads of one event loop that are stamped already and looked at when no more come in.

An engine's step brings a read on every stream at once. What is done for one of them (taking HTTP apart, waking the task
whose answer is whole) would make the stamps of all that follow later than they are.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

_LONGEST_NS = 2_000_000


class Receiver(Protocol):
    """What a read is handed to in the end."""

    def received(self, at_ns: int, data: bytes) -> None:
        """Take a read that arrived at `at_ns`."""


class Backlog:
    """Append (receiver, arrival in ns of `perf_counter_ns`, bytes) to `reads`, and `begin` unless it has `begun`.

    They are handed on, in order, after the first turn of the loop that brought none, or when the first of them has
    waited for 2 ms; sooner by `settle`.
    """

    __slots__ = ("_loop", "_seen", "begun", "reads")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._seen = 0
        self.begun = False
        self.reads: list[tuple[Receiver, int, bytes]] = []

    def begin(self) -> None:
        """Have the reads handed on soon."""
        self.begun = True
        self._seen = 0
        self._loop.call_soon(self._turn)

    def settle(self) -> None:
        """Hand on now what has been read."""
        reads = self.reads[:]
        self.reads.clear()
        for receiver, at_ns, data in reads:
            receiver.received(at_ns, data)

    def _turn(self) -> None:
        count = len(self.reads)
        if count > self._seen and time.perf_counter_ns() - self.reads[0][1] < _LONGEST_NS:
            self._seen = count
            self._loop.call_soon(self._turn)
            return
        self.begun = False
        self.settle()
