"""The time that a session may take (`--ddtree-time-budget`): how much is left, and in which words it is spent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

FLAG = "--ddtree-time-budget"


class Budget:
    """Counts from its making on. Without a limit it is never spent."""

    def __init__(
        self, allowed_s: float | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._allowed_s = allowed_s
        self._clock = clock
        self._began = clock()

    @property
    def left_s(self) -> float:
        """Seconds that are left, negative beyond the limit, infinite without one."""
        if self._allowed_s is None:
            return math.inf
        return self._began + self._allowed_s - self._clock()

    @property
    def spent(self) -> bool:
        """Whether nothing new may begin."""
        return self.left_s <= 0

    def __str__(self) -> str:
        assert self._allowed_s is not None
        return f"{FLAG} {duration(self._allowed_s)} is spent"


def duration(seconds: float) -> str:
    """`45 s`, `3.5 min`, `2.0 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
