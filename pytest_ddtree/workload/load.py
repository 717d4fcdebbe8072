"""Closed-loop load: `concurrency` requests are always under way until all have been answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_ddtree.client.records import Record, Request
from pytest_ddtree.client.unread import Unread
from pytest_ddtree.workload.selfcheck import ClientLoad, LoopMonitor

# A cumulative stream of 2000 tokens holds some 10 MB.
_HELD_BYTES = 1 << 29


class Generates(Protocol):
    """What a load needs of a client."""

    async def prepare(self, connections: int) -> None: ...

    async def ask(
        self, request: Request, *, stream: bool = True, deadline_s: float | None = None
    ) -> Unread: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What came of a load: the records in the order of the requests, and when it began and ended.

    Times are ns on the clock of `time.perf_counter_ns`. Requests whose turn never came, because the cell's
    deadline passed or one before them broke off, are counted in `not_sent`.
    """

    records: tuple[Record, ...]
    concurrency: int
    start_ns: int
    end_ns: int
    not_sent: int = 0
    client: ClientLoad | None = None
    """How busy the client itself was."""

    @property
    def wall_s(self) -> float:
        """Seconds from the first request sent to the last token received."""
        return (self.end_ns - self.start_ns) / 1e9


def stagger_starts(concurrency: int, service_s: float) -> tuple[float, ...]:
    """Start times, in seconds, of the first `concurrency` requests: spread evenly over one mean service time.

    Requests of equal length that start together would march in lockstep waves, which favours whichever side
    batches its prefills better.
    """
    return tuple(index * service_s / concurrency for index in range(concurrency))


async def closed_loop(
    client: Generates,
    requests: Sequence[Request],
    *,
    concurrency: int,
    starts_s: Sequence[float] = (),
    deadline_s: float | None = None,
    cell_deadline_s: float | None = None,
) -> Load:
    """Send `requests` in their order, `concurrency` at a time; a finished one makes room for the next.

    Once one has broken off no more are sent: there is nothing to measure any more, and a server that hangs would take
    each of them to its deadline.

    `starts_s` delays the first request of each of the `concurrency` streams. `deadline_s` is the deadline of
    one request, `cell_deadline_s` that of all together: what still runs then times out, the rest is not sent.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, got {concurrency}")
    width = min(concurrency, len(requests))
    await client.prepare(width)
    answers = _Answers(len(requests))
    broken = False

    def turns() -> Iterator[tuple[int, Request]]:
        for turn in enumerate(requests):
            if broken:
                return
            yield turn

    waiting = turns()
    began = time.monotonic()

    async def stream(delay_s: float) -> None:
        nonlocal broken
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        for index, request in waiting:
            limit = deadline_s
            if cell_deadline_s is not None:
                left = began + cell_deadline_s - time.monotonic()
                if left <= 0:
                    return
                limit = left if limit is None else min(limit, left)
            answer = await client.ask(request, deadline_s=limit)
            broken = broken or answer.broken
            answers.take(index, answer)

    delays = [starts_s[index] if index < len(starts_s) else 0.0 for index in range(width)]
    start_ns = time.perf_counter_ns()
    async with LoopMonitor() as monitor, asyncio.TaskGroup() as group:
        for delay in delays:
            group.create_task(stream(delay))
    answered = answers.records()
    if answered:
        start_ns = min(record.sent_ns for record in answered)
        end_ns = max(record.chunks[-1].at_ns if record.chunks else record.end_ns for record in answered)
    else:
        end_ns = time.perf_counter_ns()
    return Load(
        records=answered,
        concurrency=concurrency,
        start_ns=start_ns,
        end_ns=end_ns,
        not_sent=len(requests) - len(answered),
        client=monitor.load,
    )


class _Answers:
    """Answers by number, decoded after the load, or at once when they hold much memory."""

    def __init__(self, count: int) -> None:
        self._answers: list[Unread | Record | None] = [None] * count
        self._held = 0

    def take(self, index: int, answer: Unread) -> None:
        if self._held + answer.size > _HELD_BYTES:
            self._answers[index] = answer.record()
        else:
            self._answers[index] = answer
            self._held += answer.size

    def records(self) -> tuple[Record, ...]:
        """All that came, in the order of the requests."""
        return tuple(
            answer.record() if isinstance(answer, Unread) else answer
            for answer in self._answers
            if answer is not None
        )


async def warm_up(
    client: Generates, requests: Sequence[Request], *, concurrency: int, deadline_s: float | None = None
) -> Load:
    """Run distinct requests of the cell's shape, unmeasured; at least `concurrency` of them.

    Kernels compile and graphs are captured at first use of a shape. Raises ValueError for too few requests.
    """
    if len(requests) < concurrency:
        raise ValueError(f"warming up concurrency {concurrency} needs as many requests, got {len(requests)}")
    if len({(request.input_ids, request.text) for request in requests}) < len(requests):
        raise ValueError("the requests of a warm-up must have distinct prompts")
    return await closed_loop(client, requests, concurrency=concurrency, deadline_s=deadline_s)
