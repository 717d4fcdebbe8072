"""Connections over asyncio's own transports: arrivals are when the event loop hands the bytes on.

With uvloop this is the cheapest reader; the event loop's own delay is part of its arrivals, so reads are only stamped
while more of them come in.
"""

from __future__ import annotations

import asyncio
import time
from typing import cast

import httpx

from pytest_ddtree.client.transport.backlog import Backlog
from pytest_ddtree.client.transport.connection import Connection


class StreamConnection(Connection, asyncio.Protocol):
    """A connection that is an `asyncio.Protocol`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, backlog: Backlog) -> None:
        super().__init__(loop)
        self._backlog = backlog
        self._reads = backlog.reads
        self._transport: asyncio.Transport | None = None

    async def send(self, data: bytes) -> int:
        if self._transport is None or self.closed:
            raise ConnectionResetError("the connection is closed")
        sent_ns = time.perf_counter_ns()
        self._transport.write(data)
        return sent_ns

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def settle(self) -> None:
        self._backlog.settle()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._reads.append((self, time.perf_counter_ns(), data))
        if not self._backlog.begun:
            self._backlog.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._backlog.settle()
        self.lost(exc if isinstance(exc, OSError) else None)


class StreamOpener:
    """Opens connections of one event loop that stamp their reads first, whichever comes in."""

    def __init__(self) -> None:
        self._backlog: Backlog | None = None

    async def __call__(self, host: str, port: int) -> StreamConnection:
        """Connect. Raises httpx.ConnectError."""
        loop = asyncio.get_running_loop()
        backlog = self._backlog = self._backlog or Backlog(loop)
        try:
            _, connection = await loop.create_connection(lambda: StreamConnection(loop, backlog), host, port)
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        return connection
