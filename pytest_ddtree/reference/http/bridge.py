"""From the engine thread to the event loop: updates of one pass cross over together."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from ..engine import Engine
from ..hooks import Hooks
from ..request import Submission, Update
from .observations import Observations


class Outbox:
    """Collects updates in the engine thread and hands them to their channels in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: deque[tuple[Channel, Update]] = deque()
        self.last_update = 0.0
        """When the engine last delivered anything, on the clock of ``time.perf_counter``."""

    def put(self, channel: Channel, update: Update) -> None:
        self._pending.append((channel, update))

    def flush(self) -> None:
        """Engine thread: wake the loop if something is pending."""
        if self._pending:
            _call(self._loop, self._drain)

    def _drain(self) -> None:
        self.last_update = time.perf_counter()
        while self._pending:
            channel, update = self._pending.popleft()
            channel.receive(update)


class Channel:
    """Updates of one request, waiting to be read by its handler.

    ``leave`` ends this request and no other, whatever their ids.
    """

    def __init__(self, observed: Observations, engine: Engine, outbox: Outbox) -> None:
        self._observed = observed
        self.deliver = partial(outbox.put, self)
        self.leave = partial(engine.depart, self.deliver)
        self._submitted = self._last = time.perf_counter()
        self._tokens = 0
        self._updates: deque[Update] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def receive(self, update: Update) -> None:
        self._observe(update)
        self._updates.append(update)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _observe(self, update: Update) -> None:
        now = time.perf_counter()
        fresh = len(update.tokens)
        if fresh and not self._tokens:
            self._observed.first_token.observe(now - self._submitted)
        elif fresh:
            self._observed.inter_token.observe((now - self._last) / fresh, fresh)
        if update.finish is not None:
            self._observed.end_to_end.observe(now - self._submitted)
        self._tokens += fresh
        self._last = now

    async def next(self) -> Update:
        while not self._updates:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._updates.popleft()


class Frontend:
    """Submits requests for the handlers and aborts those that nobody waits for any more."""

    def __init__(self, engine: Engine, outbox: Outbox, observed: Observations) -> None:
        self.engine = engine
        self._observed = observed
        self._outbox = outbox

    @property
    def last_update(self) -> float:
        return self._outbox.last_update

    def submit(self, submission: Submission) -> Channel:
        channel = Channel(self._observed, self.engine, self._outbox)
        self.engine.submit(submission, channel.deliver)
        return channel

    async def flush_cache(self) -> bool:
        return await _told(self.engine.flush_cache)

    async def plant(self, hooks: Hooks) -> bool:
        return await _told(partial(self.engine.plant, hooks))


async def _told(command: Callable[[Callable[[bool], None]], None]) -> bool:
    """What a command of the engine says when it is carried out."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bool] = loop.create_future()

    def done(value: bool) -> None:
        _call(loop, _set, future, value)

    command(done)
    return await future


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *values: Any) -> None:
    """Engine thread: have the loop call a function, unless it is closed: a long pass may outlive the server's last half second."""
    try:
        loop.call_soon_threadsafe(function, *values)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _set(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)
