"""A connection that carries one exchange after the other; how it reads is left to its two kinds."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from enum import IntEnum

import httpx

from pytest_ddtree.client.transport.http1 import BadResponse, ResponseReader


class PeerClosed(httpx.RemoteProtocolError):
    """The server closed the connection before the response was complete."""


class Wants(IntEnum):
    """What a waiting task waits for."""

    HEAD = 1
    DATA = 2
    END = 3


# Looking a member up in its enum costs as much as a tenth of handling a read.
_HEAD, _DATA = Wants.HEAD, Wants.DATA


class Connection(ABC):
    """One connection to a server, owned by one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.reader: ResponseReader | None = None
        self.closed = False
        self.used = False
        self._fault: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._wants = Wants.HEAD

    @abstractmethod
    async def send(self, data: bytes) -> int:
        """Send a whole request; returns when sending began, in ns of `perf_counter_ns`. Raises OSError."""

    @abstractmethod
    def close(self) -> None:
        """Close at once. May be called twice."""

    def settle(self) -> None:  # noqa: B027
        """Look at all that has been read, if the kind puts that off."""

    async def begin(self, data: bytes) -> tuple[ResponseReader, int]:
        """Send a request and make ready for its response. Raises httpx.WriteError."""
        reader = self.reader = ResponseReader()
        try:
            sent_ns = await self.send(data)
        except OSError as error:
            self.close()
            raise httpx.WriteError(str(error)) from error
        return reader, sent_ns

    async def wait(self, wants: Wants, timeout_s: float | None = None) -> None:
        """Wait for the head, for more than has been read, or for the end of the response.

        `timeout_s` is the longest silence. Raises PeerClosed, httpx.RemoteProtocolError, httpx.ReadError,
        httpx.ReadTimeout; what was read before stays in the reader.
        """
        reader = self.reader
        assert reader is not None
        while not self._satisfied(reader, wants):
            if self._fault is not None:
                raise self._fault
            before = reader.head_done, reader.received
            waiter = self._waiter = self.loop.create_future()
            self._wants = wants
            try:
                if timeout_s is None:
                    await waiter
                else:
                    async with asyncio.timeout(timeout_s):
                        await waiter
            except TimeoutError:
                self.settle()
                if (reader.head_done, reader.received) == before:
                    raise httpx.ReadTimeout(f"the server was silent for {timeout_s:g} s") from None
            except asyncio.CancelledError:
                # A deadline: what came before it belongs to the answer.
                self.settle()
                raise
            finally:
                self._waiter = None
            if wants is Wants.DATA:
                break
        if self._fault is not None and not self._satisfied(reader, wants):
            raise self._fault

    @property
    def reusable(self) -> bool:
        """Whether another request may follow on this connection."""
        self.settle()
        reader = self.reader
        fresh = reader is None or (reader.complete and reader.keep_alive and not reader.surplus)
        return fresh and not self.closed and self._fault is None

    # What the kinds call.

    def received(self, at_ns: int, data: bytes | memoryview) -> None:
        """Bytes have arrived."""
        reader = self.reader
        if reader is None:
            self.lost(None)
            return
        try:
            reader.feed(at_ns, data)
        except BadResponse as error:
            self._fault = httpx.RemoteProtocolError(f"no HTTP response: {error}")
            self.close()
            self._wake()
            return
        if self._waiter is not None and (
            reader.complete or self._wants is _DATA or (reader.head_done and self._wants is _HEAD)
        ):
            self._wake()

    def lost(self, error: OSError | None) -> None:
        """The connection has ended: with an error, or by the server (None)."""
        self.closed = True
        reader = self.reader
        if reader is not None and not reader.complete and self._fault is None:
            if error is not None:
                self._fault = httpx.ReadError(str(error) or type(error).__name__)
            elif not reader.feed_eof():
                self._fault = PeerClosed(
                    f"the server closed the connection after {reader.received} bytes of the body"
                )
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @staticmethod
    def _satisfied(reader: ResponseReader, wants: Wants) -> bool:
        return reader.complete or (wants is Wants.HEAD and reader.head_done)
