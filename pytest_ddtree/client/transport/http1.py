"""One HTTP/1.1 response, put together from what a connection reads, with the arrival of every read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import httptools


class BadResponse(Exception):
    """Bytes that are no HTTP response."""


class Arrivals(Sequence[tuple[int, int]]):
    """(arrival in ns, bytes of the body so far) of every read that brought some of the body.

    Kept in two columns: a pair for each of thousands of reads would be work for the garbage collector.
    """

    __slots__ = ("sizes", "times")

    def __init__(self) -> None:
        self.times: list[int] = []
        self.sizes: list[int] = []

    def __len__(self) -> int:
        return len(self.times)

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, int]]: ...

    def __getitem__(self, index: int | slice) -> tuple[int, int] | list[tuple[int, int]]:
        if isinstance(index, slice):
            return list(zip(self.times[index], self.sizes[index], strict=True))
        return self.times[index], self.sizes[index]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.times, self.sizes, strict=True)


class ResponseReader:
    """Feed it reads; it holds status, headers, body parts and arrivals. No input or output of its own."""

    __slots__ = (
        "_parser",
        "arrivals",
        "complete",
        "framed",
        "head_done",
        "headers",
        "keep_alive",
        "parts",
        "received",
        "started",
        "status",
        "surplus",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.parts: list[bytes] = []
        self.arrivals = Arrivals()
        self.received = 0
        self.started = False
        self.head_done = False
        self.complete = False
        self.framed = False
        """Whether the head says where the body ends; else the end of the connection is its end."""
        self.keep_alive = False
        self.surplus = False
        """Whether bytes came after the end of the response, which makes the connection useless."""

    def feed(self, at_ns: int, data: bytes | memoryview) -> None:
        """Take one read; raises BadResponse."""
        if self.complete:
            self.surplus = True
            return
        self.started = True
        before = self.received
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BadResponse(str(error) or type(error).__name__) from error
        except httptools.HttpParserUpgrade as error:
            raise BadResponse("the server switches to another protocol, which was not asked for") from error
        finally:
            if self.received != before:
                self.arrivals.times.append(at_ns)
                self.arrivals.sizes.append(self.received)

    def add(self, at_ns: int, part: bytes) -> None:
        """A piece of the body that something else took out of its HTTP."""
        self.parts.append(part)
        self.received += len(part)
        self.arrivals.times.append(at_ns)
        self.arrivals.sizes.append(self.received)

    def feed_eof(self) -> bool:
        """The connection has ended; whether that was a proper end of the response."""
        if self.head_done and not self.framed:
            self.complete = True
        return self.complete

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self.complete:
            self.surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.complete:
            return
        self.headers.append((name, value))
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self.framed = True

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        self.status = self._parser.get_status_code()
        self.head_done = self.status >= 200

    def on_body(self, body: bytes) -> None:
        if self.complete:
            return
        self.parts.append(body)
        self.received += len(body)

    def on_message_complete(self) -> None:
        if self.status < 200:
            # An interim response, such as 100; the real one follows.
            self.headers.clear()
            self.framed = False
            return
        if not self.complete:
            self.complete = True
            self.keep_alive = self._parser.should_keep_alive()
