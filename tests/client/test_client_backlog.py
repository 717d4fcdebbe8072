"""Reads that are stamped at once and looked at later."""

from __future__ import annotations

import asyncio
import time

import pytest
from scripted_server import HEAD, LAST_CHUNK, chunk, generate_events

from pytest_ddtree.client.transport import PeerClosed
from pytest_ddtree.client.transport.backlog import Backlog
from pytest_ddtree.client.transport.connection import Wants
from pytest_ddtree.client.transport.http1 import ResponseReader
from pytest_ddtree.client.transport.streams import StreamConnection

EVENTS = generate_events([[5], [6, 7], [8]], finish={"type": "length", "length": 4})
BODY = b"".join(map(chunk, EVENTS))
HOUR_NS = 3_600_000_000_000


class Seen:
    def __init__(self) -> None:
        self.reads: list[tuple[int, bytes]] = []

    def received(self, at_ns: int, data: bytes) -> None:
        self.reads.append((at_ns, data))


def add(backlog: Backlog, seen: Seen, at_ns: int, data: bytes) -> None:
    backlog.reads.append((seen, at_ns, data))
    if not backlog.begun:
        backlog.begin()


async def reads_in_each_turn(first_ns: int, turns: int) -> list[int]:
    """How many reads had been handed on when each turn of the loop brought another one."""
    backlog, seen = Backlog(asyncio.get_running_loop()), Seen()
    handed_on = []
    for number in range(turns):
        add(backlog, seen, first_ns + number, b"%d" % number)
        await asyncio.sleep(0)
        handed_on.append(len(seen.reads))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen.reads == [(first_ns + number, b"%d" % number) for number in range(turns)]
    assert not backlog.begun
    return handed_on


def test_reads_are_handed_on_with_their_own_stamps_once_no_more_come() -> None:
    # Stamps in the future, so that the longest wait is never over.
    assert asyncio.run(reads_in_each_turn(time.perf_counter_ns() + HOUR_NS, 50)) == [0] * 50


def test_reads_that_never_cease_are_handed_on_all_the_same() -> None:
    assert asyncio.run(reads_in_each_turn(time.perf_counter_ns() - HOUR_NS, 3)) == [1, 2, 3]


def test_what_was_settled_is_not_handed_on_again() -> None:
    async def run() -> tuple[list[tuple[int, bytes]], bool]:
        backlog, seen = Backlog(asyncio.get_running_loop()), Seen()
        add(backlog, seen, 1, b"a")
        backlog.settle()
        assert seen.reads == [(1, b"a")]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return seen.reads, backlog.begun

    assert asyncio.run(run()) == ([(1, b"a")], False)


def connected(loop: asyncio.AbstractEventLoop) -> StreamConnection:
    connection = StreamConnection(loop, Backlog(loop))
    connection.reader = ResponseReader()
    return connection


def test_a_connection_that_ends_at_once_has_its_head_and_its_body() -> None:
    """The head, a part of the body and the end in one turn of the loop: the fault is the body's alone."""

    async def run() -> StreamConnection:
        connection = connected(asyncio.get_running_loop())
        waiting = asyncio.ensure_future(connection.wait(Wants.HEAD))
        await asyncio.sleep(0)
        connection.data_received(HEAD + BODY)
        connection.connection_lost(None)
        await waiting
        with pytest.raises(PeerClosed):
            await connection.wait(Wants.END)
        return connection

    reader = asyncio.run(run()).reader
    assert reader is not None
    assert (reader.status, b"".join(reader.parts)) == (200, b"".join(EVENTS))


def test_a_deadline_that_passes_before_a_read_was_looked_at_does_not_lose_it() -> None:
    async def parts_at_the_deadline(connection: StreamConnection) -> list[bytes]:
        assert connection.reader is not None
        with pytest.raises(asyncio.CancelledError):
            await connection.wait(Wants.END)
        return list(connection.reader.parts)

    async def run() -> list[bytes]:
        connection = connected(asyncio.get_running_loop())
        waiting = asyncio.ensure_future(parts_at_the_deadline(connection))
        await asyncio.sleep(0)
        waiting.cancel()
        connection.data_received(HEAD + BODY)
        return await waiting

    assert asyncio.run(run()) == EVENTS


def test_a_head_that_came_and_was_not_looked_at_is_no_silence() -> None:
    async def run() -> int:
        connection = connected(asyncio.get_running_loop())
        connection._backlog.begun = True  # as long as more reads come
        connection.data_received(HEAD)
        await connection.wait(Wants.HEAD, 0.01)
        assert connection.reader is not None
        return connection.reader.status

    assert asyncio.run(run()) == 200


def test_bytes_after_a_response_that_were_not_looked_at_make_the_connection_useless() -> None:
    async def run() -> tuple[bool, bool]:
        connection = connected(asyncio.get_running_loop())
        connection.data_received(HEAD + BODY + LAST_CHUNK)
        before = connection.reusable
        connection.data_received(b"more")
        return before, connection.reusable

    assert asyncio.run(run()) == (True, False)
