"""What tests ask of processes that a sandbox started."""

from __future__ import annotations

import time
from pathlib import Path


def children(pid: int) -> list[int]:
    """Pids of the processes that a process has started and not yet reaped."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for one in found for child in one.read_text().split()]


def gone(pid: int) -> bool:
    """Whether the process ends in time (an orphan is reaped by whoever adopted it)."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.01)
    return False
