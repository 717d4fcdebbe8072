"""The checker's end of a run's channel: frames with deadlines in CPU and wall seconds.

Everything that arrives here was written by untrusted code.
"""

from __future__ import annotations

import select
import socket
import time
from typing import Any, Final

from .inner.codec import CodecError, decode
from .inner.wire import HEADER, MAX_FRAME, pack
from .limits import Limits

_CHUNK: Final = 1 << 18
# A clock that has just reached its limit may still read a hair less.
_CLOCK_STEP_S: Final = 0.01


class ChannelClosedError(Exception):
    """The other side is gone, or closed its end."""


class TimeLimitError(Exception):
    """A limit was reached; the text says which."""


class ForgeryError(Exception):
    """Bytes that answer no request, or no well-formed frame."""


class CpuClock:
    """CPU seconds of another process, through its clock (clock_getcpuclockid(3))."""

    def __init__(self, pid: int) -> None:
        self._clock = (~pid << 3) | 2

    def read(self) -> float | None:
        """None once the process has ended."""
        try:
            return time.clock_gettime(self._clock)
        except OSError:
            return None


class Budget:
    """Time limits of one request, started when it is made."""

    def __init__(self, limits: Limits, clock: CpuClock | None) -> None:
        self._limits = limits
        self._clock = clock
        self._cpu_start = (clock.read() if clock else None) or 0.0
        self._wall_end = time.monotonic() + limits.wall_s

    @property
    def elapsed(self) -> bool:
        """Whether the limit on elapsed time was reached."""
        return time.monotonic() >= self._wall_end

    def wait(self, poller: select.poll) -> list[tuple[int, int]]:
        """Ready descriptors; raises TimeLimitError when none came within the limits."""
        while True:
            ready = poller.poll(max(1.0, self.left() * 1000))
            if ready:
                return ready

    def left(self) -> float:
        """Seconds until a limit can be reached at the earliest; raises TimeLimitError when one was."""
        wall = self._wall_end - time.monotonic()
        if wall <= 0:
            raise TimeLimitError(f"{self._limits.wall_s:g} s of elapsed time")
        cpu = self._clock.read() if self._clock else None
        if cpu is None:
            return wall
        cpu_left = self._limits.cpu_s - (cpu - self._cpu_start)
        if cpu_left <= 0:
            raise TimeLimitError(f"{self._limits.cpu_s:g} s of CPU time")
        return min(wall, cpu_left + _CLOCK_STEP_S)


class Channel:
    """One run's stream socket, non-blocking; strictly a request, then its reply."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._read = select.poll()
        self._read.register(sock, select.POLLIN)
        self._both = select.poll()
        self._both.register(sock, select.POLLIN | select.POLLOUT)

    def close(self) -> None:
        self._socket.close()

    def send(self, message: tuple[object, ...], budget: Budget) -> None:
        """Raises ForgeryError when the other side has sent something unasked."""
        if self._read.poll(0):
            self._refuse_unasked()
        view = memoryview(pack(message))
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                budget.wait(self._both)
                if self._refuse_unasked():
                    # It will never answer, and would wake the wait above at once for as long as it reads nothing.
                    raise ChannelClosedError("closed") from None
            except OSError as error:
                raise ChannelClosedError(str(error)) from error

    def receive(self, budget: Budget) -> tuple[Any, ...]:
        """One message, a tuple that begins with a kind."""
        (size,) = HEADER.unpack(self._exactly(HEADER.size, budget))
        if size > MAX_FRAME:
            raise ForgeryError(f"announced {size} bytes")
        try:
            message = decode(self._exactly(size, budget))
        except CodecError as error:
            raise ForgeryError(str(error)) from error
        if type(message) is not tuple or not message or type(message[0]) is not str:
            raise ForgeryError("a message of the wrong form")
        return message

    def refuse_more(self) -> None:
        """Raises ForgeryError when bytes wait that answer nothing."""
        if self._read.poll(0):
            self._refuse_unasked()

    def _refuse_unasked(self) -> bool:
        """Whether the other side will send nothing any more; raises ForgeryError when it has sent something."""
        try:
            waiting = self._socket.recv(1, socket.MSG_PEEK)
        except OSError:
            return False
        if waiting:
            raise ForgeryError("sent bytes that nobody had asked for")
        return True

    def _exactly(self, size: int, budget: Budget) -> bytes:
        parts = []
        while size:
            try:
                chunk = self._socket.recv(min(size, _CHUNK))
            except BlockingIOError:
                budget.wait(self._read)
                continue
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            if not chunk:
                raise ChannelClosedError("closed")
            parts.append(chunk)
            size -= len(chunk)
        return b"".join(parts)
