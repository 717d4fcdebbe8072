"""Feeding a program's standard input and collecting what it writes."""

from __future__ import annotations

import os
import select
from typing import Final

from .channel import Budget, TimeLimitError
from .errors import SandboxError
from .inner.program import OUT_OF_MEMORY
from .limits import Limits
from .results import Done, Ended, ProgramResult, StepResult
from .run import Run
from .zygote_process import RunEnd, ZygoteProcess

_CHUNK: Final = 1 << 16
_STDERR_KEPT: Final = 1 << 16


class _Pipes:
    """The program's three standard streams; the child's ends are closed here once the child has them."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        try:
            self.child_in, self.stdin = self._pipe()
            self.stdout, self.child_out = self._pipe()
            self.stderr, self.child_err = self._pipe()
        except OSError as error:
            self.close()
            raise SandboxError(f"a program has no standard streams: {error}") from error
        for fd in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(fd, False)

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._open.update(ends)
        return ends

    @property
    def for_child(self) -> list[int]:
        return [self.child_in, self.child_out, self.child_err]

    def close(self, *fds: int) -> None:
        for fd in fds or tuple(self._open):
            if fd in self._open:
                self._open.remove(fd)
                os.close(fd)


def run_program(
    zygote: ZygoteProcess, limits: Limits, source: str, stdin: bytes
) -> ProgramResult | StepResult:
    """Runs `source` as `__main__`. Only a program that came to its end by itself gives a ProgramResult."""
    pipes = _Pipes()
    try:
        with Run(zygote, limits, 1, pipes.for_child) as run:
            pipes.close(*pipes.for_child)
            loaded = run.step("program", source)
            if not isinstance(loaded, Done):
                return loaded
            try:
                stdout, stderr, end = _converse(run, pipes, limits, stdin)
            except TimeLimitError as error:
                return Ended("timeout", f"more than {error}")
            except _TooMuchError:
                return run.over(f"wrote more than {limits.output_bytes} bytes")
            return _result(run, stdout, stderr, end)
    finally:
        pipes.close()


class _TooMuchError(Exception):
    """More output than allowed."""


def _converse(run: Run, pipes: _Pipes, limits: Limits, stdin: bytes) -> tuple[bytes, bytes, RunEnd]:
    budget = run.budget()
    poller = select.poll()
    waiting = memoryview(stdin)
    outputs = {pipes.stdout: bytearray(), pipes.stderr: bytearray()}
    still_open = set(outputs)
    for fd in outputs:
        poller.register(fd, select.POLLIN)
    poller.register(pipes.stdin, select.POLLOUT)
    feeding = True
    while still_open:
        for fd, _ in budget.wait(poller):
            if fd == pipes.stdin:
                waiting = _feed(fd, waiting)
                continue
            chunk = os.read(fd, _CHUNK)
            if not chunk:
                still_open.discard(fd)
                poller.unregister(fd)
            elif fd == pipes.stdout:
                outputs[fd] += chunk
                if len(outputs[fd]) > limits.output_bytes:
                    raise _TooMuchError
            elif len(outputs[fd]) < _STDERR_KEPT:
                outputs[fd] += chunk
        if feeding and not waiting:
            feeding = False
            poller.unregister(pipes.stdin)
            pipes.close(pipes.stdin)
    return bytes(outputs[pipes.stdout]), bytes(outputs[pipes.stderr]), _await_end(run, budget)


def _feed(fd: int, waiting: memoryview) -> memoryview:
    """What is left to write; nothing once the program reads no more."""
    try:
        return waiting[os.write(fd, waiting[:_CHUNK]) :]
    except BlockingIOError:
        return waiting
    except BrokenPipeError:
        return waiting[:0]


def _await_end(run: Run, budget: Budget) -> RunEnd:
    """A program may close its streams and go on; its limits hold until it ends."""
    while True:
        end = run.end_within(budget.left())
        if end is not None:
            return end


def _result(run: Run, stdout: bytes, stderr: bytes, end: RunEnd) -> ProgramResult | Ended:
    if os.WIFSIGNALED(end.status):
        return run.ended()
    status = os.waitstatus_to_exitcode(end.status)
    if status == OUT_OF_MEMORY:
        return Ended("memory", "the memory limit was reached")
    return ProgramResult(stdout, stderr.decode("utf-8", "replace"), status)
