"""Connections of one event loop by origin: idle ones are reused, the latest first; none is polled."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import httpx

from pytest_ddtree.client.transport.connection import Connection

Opener = Callable[[str, int], Awaitable[Connection]]
Origin = tuple[str, int]
# More at once may overflow the backlog of a listening socket, and a lost SYN is retried after a second.
_OPENING_AT_ONCE = 64


class Pool:
    """Takes and gives connections; there is no upper limit, as the load decides how many it needs."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._idle: dict[Origin, deque[Connection]] = {}
        self._closed = False

    async def prepare(self, origin: Origin, count: int, timeout_s: float | None = None) -> None:
        """Have at least `count` idle connections; where not all can be had, those that were opened are kept.

        Raises httpx.ConnectError, httpx.ConnectTimeout.
        """
        idle = self._idle.setdefault(origin, deque())
        known = list(idle)
        idle.clear()
        for connection in known:
            self.give(origin, connection)

        async def one_more() -> None:
            self.give(origin, await self._open(origin, timeout_s))

        while len(idle) < count and not self._closed:
            wanted = min(count - len(idle), _OPENING_AT_ONCE)
            ended = await asyncio.gather(*(one_more() for _ in range(wanted)), return_exceptions=True)
            for problem in ended:
                if problem is not None:
                    raise problem

    async def take(self, origin: Origin, timeout_s: float | None = None) -> Connection:
        """An idle connection, or a new one."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.reusable:
                connection.used = True
                return connection
            connection.close()
        return await self._open(origin, timeout_s)

    async def fresh(self, origin: Origin, timeout_s: float | None = None) -> Connection:
        """A new connection."""
        return await self._open(origin, timeout_s)

    def give(self, origin: Origin, connection: Connection) -> None:
        """Return a connection after an exchange; it is closed unless another may follow."""
        if connection.reusable and not self._closed:
            self._idle.setdefault(origin, deque()).append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close the idle connections, and from now on those that are given back."""
        self._closed = True
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()

    async def _open(self, origin: Origin, timeout_s: float | None) -> Connection:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._opener(*origin)
        except TimeoutError:
            raise httpx.ConnectTimeout(f"no connection within {timeout_s:g} s") from None
