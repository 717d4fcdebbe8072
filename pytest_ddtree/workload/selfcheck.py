"""Is the client the limit? The lag of its event loop and its share of a core, while a load runs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Self

_PERIOD_S = 0.01
# Event loops wait for their timers in whole milliseconds, rounded up.
_GRAIN_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLoad:
    """How busy the client was during one load."""

    wall_s: float
    cpu_s: float
    """CPU seconds of the thread that runs the event loop."""
    lag_mean_s: float
    """How late the event loop came to a timer, on average over timers that are due every 10 ms, beyond the millisecond
    that every timer may be late: so late is a finished request replaced."""
    lag_max_s: float
    samples: int

    @property
    def cpu_share(self) -> float:
        """Share of one core."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Beyond which the client, not the server, decides a figure."""

    cpu_share: float = 0.9
    lag_of_latency: float = 0.01
    """Mean lag as a share of the median request: by that much the output rate is understated."""
    lag_of_gap: float = 0.1
    """Mean lag as a share of the median chunk gap, where the event loop stamps the arrivals."""
    coalesced_share: float = 0.2
    """Share of reads with several events, where the client is also busy for more than half of the time."""


def client_bound(
    load: ClientLoad,
    *,
    latency_p50_s: float | None,
    gap_p50_s: float | None,
    coalesced: int,
    chunks: int,
    kernel_stamps: bool,
    limits: ClientLimits | None = None,
) -> str | None:
    """Why the figures of a load say more about the client than about the server; None where they do not.

    `coalesced` counts reads that held several events, `chunks` all events that carried tokens.
    """
    limits = limits or ClientLimits()
    if load.cpu_share > limits.cpu_share:
        return f"client-bound: its event loop used {load.cpu_share:.0%} of a core (at most {limits.cpu_share:.0%})"
    if latency_p50_s and load.lag_mean_s > limits.lag_of_latency * latency_p50_s:
        return (
            f"client-bound: its event loop was {load.lag_mean_s * 1e3:.1f} ms late on average, "
            f"{load.lag_mean_s / latency_p50_s:.1%} of a request's {latency_p50_s * 1e3:.0f} ms "
            f"(at most {limits.lag_of_latency:.0%})"
        )
    if not kernel_stamps and gap_p50_s and load.lag_mean_s > limits.lag_of_gap * gap_p50_s:
        return (
            f"client-bound: its event loop was {load.lag_mean_s * 1e3:.2f} ms late on average, "
            f"{load.lag_mean_s / gap_p50_s:.0%} of the gap between chunks (at most {limits.lag_of_gap:.0%})"
        )
    if chunks and coalesced / chunks > limits.coalesced_share and load.cpu_share > 0.5:
        return (
            f"client-bound: {coalesced / chunks:.0%} of its reads held several events while it used "
            f"{load.cpu_share:.0%} of a core"
        )
    return None


class LoopMonitor:
    """Measures the running event loop between entering and leaving; `load` has the result."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.load: ClientLoad | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._wall = time.perf_counter()
        self._cpu = time.thread_time()
        self._due = self._loop.time() + _PERIOD_S
        self._schedule()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._take()
        self.load = ClientLoad(
            wall_s=time.perf_counter() - self._wall,
            cpu_s=time.thread_time() - self._cpu,
            lag_mean_s=sum(self._lags) / len(self._lags) if self._lags else 0.0,
            lag_max_s=max(self._lags, default=0.0),
            samples=len(self._lags),
        )

    def _schedule(self) -> None:
        self._handle = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        self._take()
        self._schedule()

    def _take(self) -> None:
        late, self._due = lateness(self._due, self._loop.time())
        self._lags += late


def lateness(due: float, now: float) -> tuple[list[float], float]:
    """How late at `now` each timer is that has been due since `due`, in seconds, and when the next one is due.

    A loop that is away for a second is late for all that was due in that second: counting the one timer that it was
    asked for would understate the lag by the very pauses that matter.
    """
    late = []
    while due <= now:
        late.append(max(0.0, now - due - _GRAIN_S))
        due += _PERIOD_S
    return late, due
