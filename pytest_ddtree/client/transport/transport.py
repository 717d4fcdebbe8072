"""The `httpx` transport for token streams of plain-http servers: connections opened before, timed reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import httpx

from pytest_ddtree.client.transport.connection import Connection, PeerClosed, Wants
from pytest_ddtree.client.transport.http1 import ResponseReader
from pytest_ddtree.client.transport.pool import Opener, Origin, Pool
from pytest_ddtree.client.transport.stamps import StampOpener, stamps_available
from pytest_ddtree.client.transport.streams import StreamOpener

Reader = Literal["auto", "kernel", "loop"]
"""How arrivals are stamped: by the kernel, by the event loop, or whichever suits the running loop."""

ARRIVALS = "ddtree.arrivals"
"""Response extension: list of (arrival in ns of `perf_counter_ns`, bytes of the body so far), grown live."""
BODY = "ddtree.body"
"""Response extension: the parts of the body read so far, grown live."""
SENT = "ddtree.sent_ns"
"""Response extension: when sending of the request began."""
WHOLE = "ddtree.whole"
"""Request extension: wake the reading task only at the end of the response."""


def choose_reader(loop: asyncio.AbstractEventLoop) -> Literal["kernel", "loop"]:
    """Kernel stamps on plain asyncio where the kernel gives them; else the loop's (uvloop: highest rates)."""
    plain = type(loop).__module__.startswith("asyncio")
    return "kernel" if plain and stamps_available() else "loop"


class StreamTransport(httpx.AsyncBaseTransport):
    """Serves `http` URLs of one event loop, HTTP/1.1, one request at a time on each connection.

    There is no pool to be scanned: a burst of any size costs each request one connection taken from a list.
    """

    def __init__(self, reader: Reader = "auto") -> None:
        self._asked: Reader = reader
        self._pool: Pool | None = None
        self.reader: Literal["kernel", "loop"] | None = None
        """What stamps the arrivals; None before the first use."""

    async def prepare(self, url: httpx.URL | str, count: int, timeout_s: float | None = None) -> None:
        """Open connections beforehand, so that none is opened inside a measurement."""
        await self._connections().prepare(_origin(httpx.URL(url)), count, timeout_s)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`."""
        if request.url.scheme != "http":
            raise httpx.UnsupportedProtocol(f"this transport serves http, not {request.url.scheme}")
        timeouts: Mapping[str, Any] = request.extensions.get("timeout", {})
        data = _serialise(request, await request.aread())
        origin = _origin(request.url)
        pool = self._connections()
        connection = await pool.take(origin, timeouts.get("connect"))
        try:
            reader, sent_ns = await _send(connection, data, timeouts)
        except (PeerClosed, httpx.ReadError, httpx.WriteError):
            # A server may close an idle connection just as it is used again; nothing came back on it.
            if not connection.used or (connection.reader is not None and connection.reader.started):
                raise
            connection = await pool.fresh(origin, timeouts.get("connect"))
            reader, sent_ns = await _send(connection, data, timeouts)
        whole = bool(request.extensions.get(WHOLE))
        return httpx.Response(
            reader.status,
            headers=reader.headers,
            stream=_Body(pool, origin, connection, reader, timeouts.get("read"), whole),
            extensions={ARRIVALS: reader.arrivals, BODY: reader.parts, SENT: sent_ns},
        )

    async def aclose(self) -> None:
        """Close the idle connections."""
        if self._pool is not None:
            self._pool.close()
            # A closed transport lets go of its socket one turn of the loop later.
            await asyncio.sleep(0)

    def _connections(self) -> Pool:
        if self._pool is None:
            asked = self._asked
            self.reader = choose_reader(asyncio.get_running_loop()) if asked == "auto" else asked
            opener: Opener = StampOpener() if self.reader == "kernel" else StreamOpener()
            self._pool = Pool(opener)
        return self._pool


class _Body(httpx.AsyncByteStream):
    """The body of a response; closing it gives the connection back, or ends it if more was to come."""

    def __init__(
        self,
        pool: Pool,
        origin: Origin,
        connection: Connection,
        reader: ResponseReader,
        timeout_s: float | None,
        whole: bool,
    ) -> None:
        self._pool = pool
        self._origin = origin
        self._connection: Connection | None = connection
        self._reader = reader
        self._timeout_s = timeout_s
        self._whole = whole

    async def __aiter__(self) -> AsyncIterator[bytes]:
        reader = self._reader
        given = 0
        wants = Wants.END if self._whole else Wants.DATA
        while True:
            fault: Exception | None = None
            if not reader.complete and (self._whole or given == len(reader.parts)):
                assert self._connection is not None
                try:
                    await self._connection.wait(wants, self._timeout_s)
                except httpx.TransportError as error:
                    fault = error
            parts = reader.parts[given:]
            given += len(parts)
            if self._whole:
                yield b"".join(parts)
            else:
                for part in parts:
                    yield part
            if fault is not None:
                raise fault
            if reader.complete and given == len(reader.parts):
                return

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give(self._origin, connection)


async def _send(
    connection: Connection, data: bytes, timeouts: Mapping[str, Any]
) -> tuple[ResponseReader, int]:
    try:
        reader, sent_ns = await connection.begin(data)
        await connection.wait(Wants.HEAD, timeouts.get("read"))
    except BaseException:
        connection.close()
        raise
    return reader, sent_ns


def _origin(url: httpx.URL) -> Origin:
    return url.host, url.port or 80


def _serialise(request: httpx.Request, body: bytes) -> bytes:
    """The request as HTTP/1.1 bytes; a body without a length (chunked by its sender) is sent with one."""
    lines = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [
        name + b": " + value for name, value in request.headers.raw if name.lower() != b"transfer-encoding"
    ]
    if body and "content-length" not in request.headers:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])
