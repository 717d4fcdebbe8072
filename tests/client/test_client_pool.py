"""Connections that are opened beforehand: none is lost when the opening ends early."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest

from pytest_ddtree.client.transport.connection import Connection
from pytest_ddtree.client.transport.pool import Pool
from pytest_ddtree.client.transport.stamps import StampOpener

FIRST = 3


class Opener:
    """Opens real connections; the ones after the first few hang, or fail once those are there."""

    def __init__(self, *, fail: bool) -> None:
        self.opened: list[Connection] = []
        self.there = asyncio.Event()
        self._asked = 0
        self._fail = fail
        self._open = StampOpener()

    async def __call__(self, host: str, port: int) -> Connection:
        self._asked += 1
        if self._asked > FIRST:
            await self.there.wait()
            if self._fail:
                raise httpx.ConnectError("refused")
            await asyncio.Event().wait()
        connection = await self._open(host, port)
        self.opened.append(connection)
        if len(self.opened) == FIRST:
            self.there.set()
        return connection


@pytest.mark.parametrize("fail", [True, False])
def test_what_was_opened_before_the_end_is_kept_and_closed(fail: bool) -> None:
    async def prepared(origin: tuple[str, int]) -> list[Connection]:
        opener = Opener(fail=fail)
        pool = Pool(opener)
        opening = asyncio.create_task(pool.prepare(origin, FIRST + 2))
        await opener.there.wait()
        if fail:
            with pytest.raises(httpx.ConnectError, match="refused"):
                await opening
        else:
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        taken = await pool.take(origin)
        assert taken in opener.opened, "one that was opened beforehand"
        pool.give(origin, taken)
        pool.close()
        return opener.opened

    with socket.create_server(("127.0.0.1", 0)) as server:
        opened = asyncio.run(prepared(("127.0.0.1", server.getsockname()[1])))
    assert len(opened) == FIRST
    assert all(connection.closed for connection in opened)


def test_what_no_request_can_follow_on_is_closed_when_others_are_opened() -> None:
    """A server that said more than its response: a read that nobody waits for would go on for the session."""

    async def prepared(origin: tuple[str, int]) -> list[Connection]:
        opener = Opener(fail=False)
        pool = Pool(opener)
        await pool.prepare(origin, 2)
        first = opener.opened[0]
        await first.begin(b"")
        assert first.reader is not None
        first.received(1, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        first.received(2, b"surplus")
        await pool.prepare(origin, 2)
        closed = [connection.closed for connection in opener.opened]
        assert closed == [True, False, False]
        pool.close()
        return opener.opened

    with socket.create_server(("127.0.0.1", 0)) as server:
        opened = asyncio.run(prepared(("127.0.0.1", server.getsockname()[1])))
    assert all(connection.closed for connection in opened)


def test_what_is_given_back_after_the_end_is_closed() -> None:
    async def given(origin: tuple[str, int]) -> list[Connection]:
        opener = Opener(fail=False)
        pool = Pool(opener)
        taken = await pool.take(origin)
        pool.close()
        pool.give(origin, taken)
        return opener.opened

    with socket.create_server(("127.0.0.1", 0)) as server:
        (connection,) = asyncio.run(given(("127.0.0.1", server.getsockname()[1])))
    assert connection.closed
