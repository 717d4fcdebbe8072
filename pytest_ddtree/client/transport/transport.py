"""The `httpx` transport for token streams of plain-http servers: connections opened before, timed reads."""

from __future__ import annotations

import asyncio
import time
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
"""Response extension: (arrival in ns of `perf_counter_ns`, bytes of the body so far) of every read, a sequence that grows live."""
BODY = "ddtree.body"
"""Response extension: the parts of the body read so far, grown live."""
SENT = "ddtree.sent_ns"
"""Response extension: when sending of the request began."""
# A connection that ends later than this after a request was sent on it was no idle one: the server had begun to work.
_STALE_NS = 1_000_000_000


class Heard:
    """What has come so far for one request, whatever becomes of it."""

    __slots__ = ("reader", "sent_ns")

    def __init__(self) -> None:
        self.reader: ResponseReader | None = None
        self.sent_ns = time.perf_counter_ns()
        """When sending began, or, before that, when this was made."""


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
        await self._connections().prepare(origin_of(httpx.URL(url)), count, timeout_s)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`."""
        if request.url.scheme != "http":
            raise httpx.UnsupportedProtocol(f"this transport serves http, not {request.url.scheme}")
        timeouts: Mapping[str, Any] = request.extensions.get("timeout", {})
        body = await request.aread()
        # As httpx has it: a request that might have a body and has none says so.
        framed = body or "content-length" in request.headers
        data = b"".join((request_head(request), _length(body) if framed else b"\r\n", body))
        origin = origin_of(request.url)
        heard = Heard()
        connection = await self._converse(
            origin, data, heard, Wants.HEAD, timeouts.get("connect"), timeouts.get("read")
        )
        reader = heard.reader
        assert reader is not None
        return httpx.Response(
            reader.status,
            headers=reader.headers,
            stream=_Body(self._connections(), origin, connection, reader, timeouts.get("read")),
            extensions={ARRIVALS: reader.arrivals, BODY: reader.parts, SENT: heard.sent_ns},
        )

    async def post(self, origin: Origin, head: bytes, body: bytes, heard: Heard) -> None:
        """Send a request (`head` of `request_head`) and read its response to its end.

        For answers of which nothing is looked at before their end: objects of httpx, and waking the task at the head, cost as much
        as five chunks. What has come is in `heard`, however this ends. Raises what an httpx transport raises.
        """
        data = b"".join((head, _length(body), body))
        connection = await self._converse(origin, data, heard, Wants.END)
        self._connections().give(origin, connection)

    async def _converse(
        self,
        origin: Origin,
        data: bytes,
        heard: Heard,
        wants: Wants,
        connect_s: float | None = None,
        read_s: float | None = None,
    ) -> Connection:
        """Send a request and wait for the head or the end of its response; the connection is closed if that fails."""
        pool = self._connections()
        connection = await pool.take(origin, connect_s)
        began_ns = time.perf_counter_ns()
        try:
            await _exchange(connection, data, heard, wants, read_s)
        except (PeerClosed, httpx.ReadError, httpx.WriteError):
            # A server may close an idle connection just as it is used again; nothing came back on it, and that at once.
            answered = heard.reader is not None and heard.reader.started
            if not connection.used or answered or time.perf_counter_ns() - began_ns > _STALE_NS:
                raise
            connection = await pool.fresh(origin, connect_s)
            await _exchange(connection, data, heard, wants, read_s)
        return connection

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
    ) -> None:
        self._pool = pool
        self._origin = origin
        self._connection: Connection | None = connection
        self._reader = reader
        self._timeout_s = timeout_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        reader = self._reader
        given = 0
        while True:
            fault: Exception | None = None
            if not reader.complete and given == len(reader.parts):
                assert self._connection is not None
                try:
                    await self._connection.wait(Wants.DATA, self._timeout_s)
                except httpx.TransportError as error:
                    fault = error
            parts = reader.parts[given:]
            given += len(parts)
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


async def _exchange(
    connection: Connection, data: bytes, heard: Heard, wants: Wants, timeout_s: float | None
) -> None:
    try:
        heard.reader, heard.sent_ns = await connection.begin(data)
        await connection.wait(wants, timeout_s)
    except BaseException:
        connection.close()
        raise


def origin_of(url: httpx.URL) -> Origin:
    """Where a URL's server is."""
    return url.host, url.port or 80


def request_head(request: httpx.Request) -> bytes:
    """A request's line and headers as HTTP/1.1 bytes, but for its length, which is what its body has.

    A body whose sender meant to send it chunked is sent with a length.
    """
    lines = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    framing = (b"transfer-encoding", b"content-length")
    lines += [name + b": " + value for name, value in request.headers.raw if name.lower() not in framing]
    return b"\r\n".join([*lines, b""])


def _length(body: bytes) -> bytes:
    return b"content-length: %d\r\n\r\n" % len(body)
