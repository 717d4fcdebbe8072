"""Connections whose arrivals are stamped by the kernel, so that no busy event loop distorts them (Linux).

Neither `asyncio.Protocol` nor uvloop hands out ancillary data, so this reads its sockets itself.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
from functools import cache

import httpx

from pytest_ddtree.client.transport.connection import Connection

# Linux, asm-generic/socket.h; the old option has a 64-bit timespec on every 64-bit machine.
SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@qq")
_ANCILLARY = socket.CMSG_SPACE(_TIMESPEC.size) if sys.platform != "win32" else 0
_BUFFER = 1 << 18
# Two clock reads further apart than this were interrupted and say nothing about the clocks' difference.
_TORN_NS = 5_000


def monotonic_from_realtime(stamp_ns: int) -> int:
    """The `perf_counter_ns` of a wall-clock stamp of just now."""
    closest, ahead = None, 0
    for _ in range(5):
        before = time.perf_counter_ns()
        wall = time.time_ns()
        after = time.perf_counter_ns()
        # Where each read is slow, as on some virtual machines, all are torn: then the one that was least.
        if closest is None or after - before < closest:
            closest, ahead = after - before, (before + after) // 2 - wall
        if closest <= _TORN_NS:
            break
    return stamp_ns + ahead


class StampConnection(Connection):
    """A connection that reads with `recvmsg` whenever the event loop says that there is something to read."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, buffer: bytearray) -> None:
        super().__init__(loop)
        self._socket = sock
        self._buffers = [buffer]
        self._view = memoryview(buffer)
        self._latest_ns = 0
        loop.add_reader(sock, self._readable)

    async def send(self, data: bytes) -> int:
        if self.closed:
            raise ConnectionResetError("the connection is closed")
        sent_ns = time.perf_counter_ns()
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            await self.loop.sock_sendall(self._socket, data[sent:])
        return sent_ns

    def close(self) -> None:
        self.closed = True
        if self._socket.fileno() >= 0:
            self.loop.remove_reader(self._socket)
            self._socket.close()

    def _readable(self) -> None:
        try:
            size, ancillary, _, _ = self._socket.recvmsg_into(self._buffers, _ANCILLARY)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close()
            self.lost(error)
            return
        if not size:
            self.close()
            self.lost(None)
            return
        self.received(self._arrival(ancillary), self._view[:size])

    def _arrival(self, ancillary: list[tuple[int, int, bytes]]) -> int:
        """The kernel's stamp of the last segment of this read; the clock's time where it gave none."""
        now = time.perf_counter_ns()
        at = now
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
                seconds, nanoseconds = _TIMESPEC.unpack(data)
                at = monotonic_from_realtime(seconds * 1_000_000_000 + nanoseconds)
        # A stamp before an earlier one or in the future tells of a clock that was set meanwhile.
        self._latest_ns = max(self._latest_ns, min(at, now))
        return self._latest_ns


class StampOpener:
    """Opens connections that share one read buffer: a loop reads one socket at a time."""

    def __init__(self) -> None:
        self._buffer = bytearray(_BUFFER)

    async def __call__(self, host: str, port: int) -> StampConnection:
        """Connect. Raises httpx.ConnectError."""
        loop = asyncio.get_running_loop()
        problem: OSError = ConnectionError(f"{host} has no address")
        try:
            addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        for family, kind, proto, _, address in addresses:
            sock = socket.socket(family, kind, proto)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                await loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                problem = error
            except BaseException:
                sock.close()
                raise
            else:
                return StampConnection(loop, sock, self._buffer)
        raise httpx.ConnectError(str(problem)) from problem


@cache
def stamps_available() -> bool:
    """Whether this kernel stamps what arrives on a TCP socket (gVisor and non-Linux systems do not)."""
    if not sys.platform.startswith("linux") or _TIMESPEC.size != 16:
        return False
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            reader.settimeout(1.0)
            reader.connect(server.getsockname())
            writer, _ = server.accept()
            with writer:
                return any(_stamped(writer, reader) for _ in range(_PROBES))
    except OSError:
        return False


_PROBES = 100


def _stamped(writer: socket.socket, reader: socket.socket) -> bool:
    """Send one byte and see whether it arrives stamped.

    The kernel switches stamping on in a work queue of its own after it was first asked for, and off again when the last
    socket that asked is closed; on a busy machine that takes milliseconds, so the probe keeps its socket and waits.
    """
    writer.send(b"x")
    _, ancillary, _, _ = reader.recvmsg(1, _ANCILLARY)
    if any(kind == SO_TIMESTAMPNS for _, kind, _ in ancillary):
        return True
    time.sleep(0.003)
    return False
