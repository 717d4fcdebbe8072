"""From the kernel's wall-clock stamps to the clock of everything else."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from pytest_ddtree.client.transport import stamps

AHEAD_NS = 7_000_000
"""How far the monotonic clock of these tests is ahead of the wall clock."""


class SlowClock:
    """Clocks of which each pair of readings takes as long as said, the wall clock's at its end."""

    def __init__(self, widths_ns: Sequence[int]) -> None:
        self.now = 1_000_000_000
        self._widths = list(widths_ns)

    def perf_counter_ns(self) -> int:
        return self.now

    def time_ns(self) -> int:
        self.now += self._widths.pop(0)
        return self.now - AHEAD_NS


@pytest.mark.parametrize(
    ("widths_ns", "error_ns"),
    [
        ([1_000], 500),
        ([80_000, 2_000], 1_000),
        # All are torn, the last one most.
        ([40_000, 30_000, 12_000, 50_000, 9_000_000], 6_000),
    ],
    ids=["at once", "torn once", "always torn"],
)
def test_the_closest_pair_of_readings_tells_how_the_clocks_differ(
    monkeypatch: pytest.MonkeyPatch, widths_ns: list[int], error_ns: int
) -> None:
    clock = SlowClock(widths_ns)
    monkeypatch.setattr(
        stamps, "time", SimpleNamespace(perf_counter_ns=clock.perf_counter_ns, time_ns=clock.time_ns)
    )
    assert stamps.monotonic_from_realtime(500) == 500 + AHEAD_NS - error_ns
