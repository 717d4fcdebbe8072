"""The zygote: a fresh interpreter that imports what solutions use, locks itself in, and forks one child a
run.

It never reads a problem, a solution or a value: the checker passes it descriptors, and the forked child alone
reads from them. So nothing of one run is in the memory of the next.

Control messages (one a packet): to the zygote `S` (start, with descriptors) and `K` (kill); from it `H`
(hello, once), `F` (fork failed) and `X` (a child ended).
"""

from __future__ import annotations

import _socket
import array
import contextlib
import gc
import os
import platform
import select
import signal
import struct
import sys
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Final, NoReturn

from . import lockdown
from .child import Guard, Orders, live
from .codec import encode
from .landlock import Landlock, readable_paths
from .preload import COMMON, WIDE, add_exits, preload, warm_import_caches
from .seccomp import Filter, assemble, rules
from .syscalls import ARCHITECTURES, Architecture

START: Final = struct.Struct("<cIQQI")  # kind, run, memory bytes, stack bytes, CPU seconds
KILL: Final = struct.Struct("<cI")  # kind, run
FAILED: Final = struct.Struct("<cIi")  # kind, run, errno
ENDED: Final = struct.Struct("<cIidd")  # kind, run, wait status, user seconds, system seconds
MOST_DESCRIPTORS: Final = 4


@dataclass
class Hello:
    """What the zygote could do, sent once. A layer stands when its reason is empty."""

    python: str
    machine: str
    kernel: str
    landlock_abi: int = 0
    no_landlock: str = ""
    no_seccomp: str = ""
    no_namespaces: str = ""
    trouble: str = ""


def main(control_fd: int, parent: int, folder: str, mode: str, without: list[str]) -> None:
    """Runs until the control socket closes. `without` names layers to leave out, as an older system would."""
    os.environ.clear()
    signal.signal(signal.SIGTERM, _leave)
    lockdown.die_with_parent(signal.SIGTERM, parent)
    os.chdir(folder)
    control = _socket.socket(fileno=control_fd)
    hello = Hello(platform.python_version(), platform.machine(), platform.release())
    try:
        guard = _prepare(hello, mode == "strict", without)
    except Exception as error:
        hello.trouble = f"{type(error).__name__}: {error}"
        guard = None
    control.send(b"H" + encode(asdict(hello)))
    if guard is not None:
        _Loop(control, guard).run()
    _leave(signal.SIGTERM, None)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    with contextlib.suppress(OSError):
        os.rmdir(os.getcwd())
    # Children die with this process; in mode "off" theirs would not.
    os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _prepare(hello: Hello, strict: bool, without: list[str]) -> Guard:
    lockdown.offer_to_oom_killer()
    preload(COMMON)
    add_exits()
    filter_ = None
    inherited = lockdown.virtual_bytes()
    arch = ARCHITECTURES.get(hello.machine) if sys.maxsize > 2**32 else None
    if strict and arch is None:
        hello.no_seccomp = (
            f"no system call table for {hello.machine} with {sys.maxsize.bit_length() + 1} bits"
        )
    elif strict and arch is not None:
        filter_, inherited = _lock(arch, hello, without)
    gc.collect()
    gc.freeze()
    return Guard(filter_, inherited, os.getpid())


def _lock(arch: Architecture, hello: Hello, without: list[str]) -> tuple[Filter | None, int]:
    """Puts up every layer the system offers; returns the children's filter and the mapped bytes."""
    with open("/proc/self/maps") as file:
        maps = file.read()
    landlock = Landlock(arch)
    try:
        if "landlock" in without:
            raise OSError("left out on request")
        landlock.abi()
    except OSError as error:
        hello.no_landlock = str(error)
        preload(WIDE)
    warm_import_caches()
    hello.no_namespaces = "left out on request" if "namespaces" in without else lockdown.enter_namespaces()
    inherited = lockdown.virtual_bytes()
    lockdown.forbid_new_privileges()
    if not hello.no_landlock:
        hello.landlock_abi = landlock.restrict_reading_to(readable_paths(sys.path, maps))
    lockdown.drop_capabilities(arch)
    lockdown.hide_from_processes()
    filter_ = Filter(arch, assemble(arch, rules(arch, files=not hello.no_landlock)))
    hello.no_seccomp = "left out on request" if "seccomp" in without else _try_in_child(filter_)
    return (None if hello.no_seccomp else filter_), inherited


def _try_in_child(filter_: Filter) -> str:
    """Why a forked child cannot install the filter, or ""."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            filter_.install()
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        reason = file.read().decode()
    status = os.waitpid(pid, 0)[1]
    return reason or (f"a child with the filter ended with status {status}" if status else "")


class _Loop:
    """Serves the control socket and reaps children; one thread, never blocked by a child."""

    def __init__(self, control: _socket.socket, guard: Guard) -> None:
        self._control = control
        self._guard = guard
        self._runs: dict[int, int] = {}  # pid to run
        self._wake, wake_writer = os.pipe()
        for fd in (self._wake, wake_writer):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._wake in ready:
                os.read(self._wake, 512)
                self._reap()
            if self._control.fileno() in ready and not self._serve():
                return

    def _serve(self) -> bool:
        """One control message; False when the checker is gone."""
        item_size = array.array("i").itemsize
        room = _socket.CMSG_SPACE(MOST_DESCRIPTORS * item_size)
        data, ancillary, _, _ = self._control.recvmsg(64, room)
        if not data:
            return False
        descriptors = array.array("i")
        for _, _, payload in ancillary:
            descriptors.frombytes(payload[: len(payload) - len(payload) % item_size])
        if data[:1] == b"S":
            _, run, memory, stack, cpu = START.unpack(data)
            self._start(run, Orders(memory, stack, cpu), list(descriptors))
        else:
            _, run = KILL.unpack(data)
            for pid, owner in self._runs.items():
                if owner == run:
                    os.kill(pid, signal.SIGKILL)
        return True

    def _start(self, run: int, orders: Orders, descriptors: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._control.send(FAILED.pack(b"F", run, error.errno or 0))
        else:
            if pid == 0:
                live(self._guard, orders, descriptors)
            self._runs[pid] = run
        finally:
            for fd in descriptors:
                os.close(fd)

    def _reap(self) -> None:
        while self._runs:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            run = self._runs.pop(pid)
            self._control.send(ENDED.pack(b"X", run, status, usage.ru_utime, usage.ru_stime))
