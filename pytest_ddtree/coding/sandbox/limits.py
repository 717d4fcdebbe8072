"""What one run may use."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one run.

    cpu_s: CPU seconds for loading the solution, and again for each call; for a program, for the whole run.
    This is
        the limit that decides, because it depends little on what else the machine does.
    wall_s: elapsed seconds for the same; generous, for solutions that sleep or wait.
    memory_bytes: address space on top of what the interpreter has mapped.
    stack_bytes: the main thread's stack, for deep recursion.
    output_bytes: standard output of a program; more of it ends the run.
    """

    cpu_s: float = 6.0
    wall_s: float = 60.0
    memory_bytes: int = 1024 * 1024 * 1024
    stack_bytes: int = 64 * 1024 * 1024
    output_bytes: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("cpu_s", "wall_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a positive number of seconds, not {value!r}")
        for name in ("memory_bytes", "stack_bytes", "output_bytes"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be a positive number of bytes, not {value!r}")
