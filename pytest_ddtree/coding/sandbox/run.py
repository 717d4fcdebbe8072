"""One sandboxed child seen from the checker: strictly one request, then one well-formed reply."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final

from .channel import Budget, Channel, ChannelClosedError, CpuClock, ForgeryError, TimeLimitError
from .errors import SandboxBrokenError, SandboxError
from .inner.codec import encode
from .limits import Limits
from .results import CallResult, Done, Ended, Missing, Odd, Raised, StepResult, Value
from .zygote_process import RunEnd, ZygoteProcess

_TEXT_FIELDS: Final = {"raised": 2, "odd": 1, "missing": 1, "ready": 0, "passed": 0, "memory": 0}
# A limit in the kernel as well, for the case that the checker itself is held up.
_BACKSTOP_S: Final = 2


class RunOver(Exception):
    """No further answer will come from this child."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended.detail)
        self.ended = ended


class Run:
    """A child of `zygote`, from the fork until it is reaped. Use as a context manager.

    `steps` is the largest number of requests, for the kernel's own CPU limit. Raises SandboxBrokenError when
    the child cannot be started or cannot lock itself in.
    """

    def __init__(self, zygote: ZygoteProcess, limits: Limits, steps: int, extra: Sequence[int] = ()) -> None:
        self._zygote = zygote
        self._limits = limits
        self._cpu_total_s = math.ceil(limits.cpu_s * max(1, steps)) + _BACKSTOP_S
        self._end: RunEnd | None = None
        self._ended_by_itself = False
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise SandboxError(f"a run has no channel: {error}") from error
        self._channel = Channel(ours)
        try:
            self.number = zygote.start(limits, self._cpu_total_s, [theirs.fileno(), *extra])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        try:
            self._clock = CpuClock(self._wait_until_up())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def cpu_s(self) -> float:
        """CPU seconds so far, or in all once it has ended."""
        return self._end.cpu_s if self._end else self._clock.read() or 0.0

    def close(self) -> None:
        """Kills the child unless it has ended, and waits for its end."""
        self._channel.close()
        self.end()

    def end(self) -> RunEnd:
        """Kills the child; how it ended, by itself if that came first."""
        if self._end is None:
            self._end = self._zygote.kill(self.number)
        return self._end

    def end_within(self, seconds: float) -> RunEnd | None:
        """How the child ended by itself, or None when it has not."""
        if self._end is None:
            self._end = self._zygote.end_within(self.number, seconds)
            self._ended_by_itself = self._end is not None
        return self._end

    def budget(self) -> Budget:
        return Budget(self._limits, self._clock)

    def send(self, message: tuple[object, ...], budget: Budget) -> None:
        """Raises RunOver."""
        with self._over():
            self._channel.send(message, budget)

    def receive(self, budget: Budget) -> tuple[Any, ...]:
        """Raises RunOver."""
        with self._over():
            return self._channel.receive(budget)

    def refuse_late(self, budget: Budget) -> None:
        """Raises RunOver where a limit was reached, also where the next message has come already."""
        with self._over():
            budget.left()

    def step(self, kind: str, *arguments: object) -> StepResult:
        """A request whose good answer carries no value. An end of the child is an answer too."""
        result = self._request(kind, *arguments)
        if isinstance(result, Value):
            return self.over("sent a value that nobody had asked for")
        return result

    def call(self, kind: str, *arguments: object) -> CallResult:
        """A request for a value."""
        result = self._request(kind, *arguments)
        if isinstance(result, Done):
            return self.over("sent no value")
        return result

    def over(self, what: str) -> Ended:
        """Ends the run because of what it did."""
        self.end()
        return Ended("crash", f"the solution's process {what}")

    def _request(self, kind: str, *arguments: object) -> CallResult | Done:
        # Nobody can answer ahead of a request whose number cannot be guessed.
        number = secrets.randbits(62)
        budget = self.budget()
        try:
            self.send((kind, number, *arguments), budget)
            reply = self.receive(budget)
            with self._over():
                self._channel.refuse_more()
        except RunOver as over:
            return over.ended
        return _parse(reply, number) or self.over("answered something that was not the question")

    def _wait_until_up(self) -> int:
        """The child's pid, once its guards stand; nothing of the solution has been sent before."""
        try:
            message = self._channel.receive(Budget(self._limits, None))
        except (ChannelClosedError, TimeLimitError) as error:
            end = self.end()
            raise SandboxBrokenError(f"a run ended before it began (status {end.status}: {error})") from error
        if message[0] != "up":
            raise SandboxBrokenError(f"a run could not lock itself in: {message[1:]}")
        return int(message[1])

    @contextlib.contextmanager
    def _over(self) -> Iterator[None]:
        try:
            yield
        except TimeLimitError as error:
            self.end()
            raise RunOver(Ended("timeout", f"more than {error}")) from error
        except ForgeryError as error:
            raise RunOver(self.over(str(error))) from error
        except ChannelClosedError as error:
            raise RunOver(self.ended()) from error

    def ended(self) -> Ended:
        """The end of a child that gave no answer."""
        end = self.end()
        if not os.WIFSIGNALED(end.status):
            status = os.waitstatus_to_exitcode(end.status)
            return Ended("crash", f"the process ended with exit status {status} before it answered")
        number = os.WTERMSIG(end.status)
        if number == signal.SIGXCPU or (number == signal.SIGKILL and end.cpu_s >= self._cpu_total_s - 0.5):
            return Ended("timeout", f"more than {self._cpu_total_s} s of CPU time in all")
        if number == signal.SIGKILL and not self._ended_by_itself:
            return Ended("crash", "the process closed its channel without an answer")
        return Ended("crash", f"the process was ended by {_signal_name(number)}")


def _signal_name(number: int) -> str:
    if number == signal.SIGKILL:
        return "SIGKILL, which the kernel sends where memory runs out"
    try:
        return signal.Signals(number).name
    except ValueError:
        # Most real-time signals have no name.
        return f"signal {number}"


def _parse(reply: tuple[Any, ...], number: int) -> CallResult | Done | None:
    """The reply as a result; None when it has any other form than a reply to this request."""
    if len(reply) < 2 or type(reply[1]) is not int or reply[1] != number:
        return None
    kind, rest = reply[0], reply[2:]
    if kind == "value":
        return Value(rest[0]) if len(rest) == 1 and type(rest[0]) is bytes else None
    if _TEXT_FIELDS.get(kind) != len(rest) or any(type(part) is not str for part in rest):
        return None
    if kind == "raised":
        return Raised(*rest)
    if kind == "odd":
        return Odd(*rest)
    if kind == "missing":
        return Missing(*rest)
    if kind == "memory":
        return Ended("memory", "the memory limit was reached")
    return Done()


def encoded(value: object) -> bytes:
    """Arguments as a request carries them."""
    return encode(value)
