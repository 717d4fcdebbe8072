"""One POST, read to its end, as an exchange; whatever goes wrong is part of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx

from pytest_ddtree.client.exchange import Exchange, Fault
from pytest_ddtree.client.transport import ARRIVALS, BODY, SENT, WHOLE, PeerClosed, StreamTransport


class Poster:
    """Posts to one server: `http` through our transport, `https` through stock httpx."""

    def __init__(self, http: httpx.AsyncClient, transport: StreamTransport, base_url: str) -> None:
        self._http = http
        self._transport = transport
        self._base_url = base_url
        self._direct = base_url.startswith("http://")
        self._heads: dict[str, tuple[httpx.URL, list[tuple[bytes, bytes]]]] = {}

    async def exchange(self, path: str, body: bytes, deadline_s: float) -> Exchange:
        """Post `body` and read the answer; never raises for what the server or the network does."""
        parts: list[bytes] = []
        arrivals: list[tuple[int, int]] = []
        status: int | None = None
        fault: Fault | None = None
        error: str | None = None
        sent_ns = time.perf_counter_ns()
        try:
            async with asyncio.timeout(deadline_s), self._post(path, body) as response:
                status = response.status_code
                sent_ns = response.extensions.get(SENT, sent_ns)
                if ARRIVALS in response.extensions:
                    parts, arrivals = response.extensions[BODY], response.extensions[ARRIVALS]
                    async for _ in response.aiter_raw():
                        pass
                else:
                    await _collect(response, parts, arrivals)
        except TimeoutError:
            fault, error = "timeout", f"no end within the deadline of {deadline_s:g} s"
        except httpx.HTTPError as exception:
            fault, error = _fault(exception), said(exception)
        return Exchange(
            sent_ns=sent_ns,
            end_ns=time.perf_counter_ns(),
            status=status,
            body=b"".join(parts),
            arrivals=arrivals,
            fault=fault,
            error=error,
        )

    def _post(self, path: str, body: bytes) -> AbstractAsyncContextManager[httpx.Response]:
        extensions: Mapping[str, bool] = {WHOLE: True}
        if not self._direct:
            return self._http.stream("POST", path, content=body, extensions=extensions)
        if path not in self._heads:
            url = httpx.URL(self._base_url + path)
            derived = httpx.Request("POST", url, headers=self._http.headers, content=body).headers.raw
            self._heads[path] = url, [head for head in derived if head[0].lower() != b"content-length"]
        url, fixed = self._heads[path]
        # Cookies, redirects and URL merging of the httpx client cost as much as forty chunks, the headers that a
        # request derives from its content as much as two.
        headers = [*fixed, (b"Content-Length", b"%d" % len(body))]
        return _sent(
            self._transport,
            httpx.Request("POST", url, headers=headers, stream=httpx.ByteStream(body), extensions=extensions),
        )


@asynccontextmanager
async def _sent(transport: StreamTransport, request: httpx.Request) -> AsyncIterator[httpx.Response]:
    response = await transport.handle_async_request(request)
    try:
        yield response
    finally:
        await response.aclose()


async def _collect(response: httpx.Response, parts: list[bytes], arrivals: list[tuple[int, int]]) -> None:
    """Read a response of stock httpx (https), stamping each part as it comes out of it."""
    received = 0
    async for part in response.aiter_raw():
        received += len(part)
        parts.append(part)
        arrivals.append((time.perf_counter_ns(), received))


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
