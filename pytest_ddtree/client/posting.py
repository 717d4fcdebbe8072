"""One POST, read to its end, as an exchange; whatever goes wrong is part of it."""

from __future__ import annotations

import asyncio
import time
from functools import cached_property

import httpx

from pytest_ddtree.client.exchange import Exchange, Fault
from pytest_ddtree.client.transport import Heard, PeerClosed, StreamTransport, origin_of, request_head
from pytest_ddtree.client.transport.http1 import ResponseReader


class Poster:
    """Posts to one server: `http` through our transport, `https` through stock httpx."""

    def __init__(self, http: httpx.AsyncClient, transport: StreamTransport, base_url: str) -> None:
        self._http = http
        self._transport = transport
        self._base_url = base_url
        self._direct = base_url.startswith("http://")
        self._heads: dict[str, bytes] = {}

    async def exchange(self, path: str, body: bytes, deadline_s: float) -> Exchange:
        """Post `body` and read the answer; never raises for what the server or the network does."""
        heard = Heard()
        fault: Fault | None = None
        error: str | None = None
        try:
            async with asyncio.timeout(deadline_s):
                if self._direct:
                    await self._transport.post(self._origin, self._head(path), body, heard)
                else:
                    await self._through_stock(path, body, heard)
        except TimeoutError:
            fault, error = "timeout", f"no end within the deadline of {deadline_s:g} s"
        except httpx.HTTPError as exception:
            fault, error = _fault(exception), said(exception)
        reader = heard.reader or ResponseReader()
        return Exchange(
            sent_ns=heard.sent_ns,
            end_ns=time.perf_counter_ns(),
            status=reader.status if reader.head_done else None,
            body=b"".join(reader.parts),
            arrivals=reader.arrivals,
            fault=fault,
            error=error,
        )

    @cached_property
    def _origin(self) -> tuple[str, int]:
        return origin_of(httpx.URL(self._base_url))

    def _head(self, path: str) -> bytes:
        """The bytes that every request to a path begins with: cookies, redirects and URL merging of httpx cost as much as forty chunks."""
        if path not in self._heads:
            request = httpx.Request("POST", httpx.URL(self._base_url + path), headers=self._http.headers)
            self._heads[path] = request_head(request)
        return self._heads[path]

    async def _through_stock(self, path: str, body: bytes, heard: Heard) -> None:
        """Post through stock httpx (https), stamping each part of the answer as it comes out of it."""
        async with self._http.stream("POST", path, content=body) as response:
            reader = heard.reader = ResponseReader()
            reader.status, reader.head_done = response.status_code, True
            async for part in response.aiter_raw():
                reader.add(time.perf_counter_ns(), part)


def said(error: BaseException) -> str:
    """An exception for people: its kind, and its text if it has one."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _fault(error: httpx.HTTPError) -> Fault:
    if isinstance(error, httpx.TimeoutException):
        return "timeout"
    if isinstance(error, httpx.RemoteProtocolError):
        closed = isinstance(error, PeerClosed) or "peer closed" in str(error) or "disconnected" in str(error)
        return "reset" if closed else "malformed"
    return "reset"
