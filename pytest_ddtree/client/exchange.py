"""One HTTP exchange as a value: what came, when, and how it ended; decoders are pure functions of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Fault = Literal["reset", "timeout", "malformed"]
"""Why an exchange broke off: the connection, the deadline, or bytes that are no HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Everything that came back for one request. Times are ns on the clock of `time.perf_counter_ns`."""

    sent_ns: int
    end_ns: int
    status: int | None = None
    """None: the response's head never came."""
    body: bytes = b""
    arrivals: Sequence[tuple[int, int]] = ()
    """(arrival, bytes of the body received by then) of every read that brought some, in order."""
    fault: Fault | None = None
    error: str | None = None

    def arrivals_of(self, ends: Sequence[int]) -> list[int]:
        """When the body's first `end` bytes were complete, for each of these ends in ascending order."""
        times: list[int] = []
        reads = iter(self.arrivals)
        at, received = next(reads, (self.end_ns, sys.maxsize))
        for end in ends:
            while received < end:
                at, received = next(reads, (self.end_ns, sys.maxsize))
            times.append(at)
        return times
