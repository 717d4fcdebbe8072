"""What every reader under test shares: the same requests, the same output. Standard library only."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

Stream = dict[str, Any]
"""{"rid", "sent_ns", "chunks": [[arrival in ns of perf_counter, tokens so far], ...]}"""


def body_of(rid: str, tokens: int) -> dict[str, Any]:
    """The JSON of one request to `/generate`."""
    sampling = {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    return {"input_ids": list(range(16)), "sampling_params": sampling, "stream": True, "rid": rid}


def cpu_s() -> float:
    """User and system seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def burst(
    streams: int, tokens: int, read: Callable[[str, dict[str, Any]], Awaitable[Stream]]
) -> tuple[list[Stream], float, float]:
    """All streams at once; what they read, CPU seconds and wall seconds."""
    before, began = cpu_s(), time.perf_counter()
    result = await asyncio.gather(
        *(read(f"r{number}", body_of(f"r{number}", tokens)) for number in range(streams))
    )
    return list(result), cpu_s() - before, time.perf_counter() - began


def arguments() -> tuple[str, int, int]:
    """(url, streams, tokens of each) from the command line."""
    return sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def report(streams: list[Stream], cpu: float, wall: float) -> None:
    """Print the outcome as one line of JSON."""
    print(json.dumps({"streams": streams, "cpu_s": cpu, "wall_s": wall}))
