"""How long starts take on both sides of a comparison: a patch may cost minutes there and not a token a second. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from pytest_ddtree.results.model import Results

_TIMES = 1.5
_SECONDS = 5.0
"""What is told is beyond both: starts of one build differ by a third with what else the machine does."""


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Median seconds of the starts of speculative configs on each side; None where there was none."""

    before: float | None = None
    now: float | None = None

    @classmethod
    def of(cls, before: Results, now: Results, configs: Collection[str]) -> Self:
        """Of these configs."""
        return cls(*(_median(side, configs) for side in (before, now)))

    def line(self, before: str, now: str) -> str | None:
        """A sentence where one side takes much longer, None else."""
        if self.before is None or self.now is None:
            return None
        low, high = sorted((self.before, self.now))
        if high - low <= _SECONDS or high <= _TIMES * low:
            return None
        return f"a start takes {self.now:.1f} s on {now} and {self.before:.1f} s on {before} (medians)"


def _median(side: Results, configs: Collection[str]) -> float | None:
    found = [one.seconds for one in side.starts if one.config in configs]
    return statistics.median(found) if found else None
