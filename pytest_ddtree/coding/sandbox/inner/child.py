"""A forked child's life: descriptors, limits, filter, then the requests of one run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import sys
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from . import lockdown
from .codec import CodecError
from .examiner import examine
from .program import run_program
from .runner import Runner
from .seccomp import Filter
from .wire import pack, read_frame, write_all

CHANNEL: Final = 3
GUARD_FAILED: Final = 97
# The kernel gives out the lowest number that is free and the zygote has few open, so none lies beyond.
_ABOVE_EVERY_DESCRIPTOR: Final = 512


@dataclass(frozen=True)
class Guard:
    """What a child needs to lock itself in. `filter` is None in mode "off"."""

    filter: Filter | None
    inherited_bytes: int
    zygote: int


@dataclass(frozen=True)
class Orders:
    """The limits of one run."""

    memory_bytes: int
    stack_bytes: int
    cpu_s: int


def live(guard: Guard, orders: Orders, descriptors: list[int]) -> NoReturn:
    """Never returns. `descriptors` are the channel and, for a program, its three standard streams."""
    code = 1
    try:
        _lock_in(guard, orders, descriptors)
        write_all(CHANNEL, pack(("up", os.getpid())))
        code = _serve()
    except (EOFError, BrokenPipeError, CodecError):
        code = 1
    except BaseException as error:
        with contextlib.suppress(BaseException):
            write_all(CHANNEL, pack(("guard", f"{type(error).__name__}: {error}"[:500])))
        code = GUARD_FAILED
    finally:
        os._exit(code)


def _lock_in(guard: Guard, orders: Orders, descriptors: list[int]) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    lockdown.die_with_parent(signal.SIGKILL, guard.zygote)
    # Out of the way of the targets first: one of them may sit on another's number.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, CHANNEL + 1) for fd in descriptors]
    for fd, target in zip(high, (CHANNEL, 0, 1, 2), strict=False):
        os.dup2(fd, target)
    if len(descriptors) == 1:
        # Error output of the zygote goes to a file of the checker's, which is not for solutions.
        os.dup2(1, 2)
    os.closerange(CHANNEL + 1, _ABOVE_EVERY_DESCRIPTOR)
    lockdown.limit_resources(
        inherited_bytes=guard.inherited_bytes,
        memory_bytes=orders.memory_bytes,
        stack_bytes=orders.stack_bytes,
        cpu_s=orders.cpu_s,
    )
    sys.argv = ["solution.py"]
    random.seed(0)
    if guard.filter is not None:
        guard.filter.install()


def _serve() -> int:
    message: Any = read_frame(CHANNEL)
    kind, request, *rest = message
    if kind == "program":
        return run_program(CHANNEL, request, *rest)
    if kind == "examine":
        return examine(CHANNEL, request, *rest)
    return Runner(CHANNEL).serve(kind, request, rest)
