"""Processes as /proc shows them: identity, ancestry, environment marker. Standard library only (the supervisor loads it)."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pytest_ddtree.servers import secrets

MARKER: Final = "PYTEST_DDTREE_LAUNCH"
"""Environment variable `<run id>/<launch id>` that every process of ours inherits."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that cannot be confused with a later one of the same id: `start` is its start time in clock ticks."""

    pid: int
    start: int
    ppid: int
    sid: int
    state: str

    @property
    def alive(self) -> bool:
        """Zombies hold nothing but their table entry."""
        return self.state not in {"Z", "X"}


def read(pid: int) -> Process | None:
    """The process with this id now, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses: split after the last one.
    fields = text[text.rfind(b")") + 2 :].split()
    return Process(pid, int(fields[19]), int(fields[1]), int(fields[3]), fields[0].decode())


def table() -> dict[int, Process]:
    """All processes that are visible now."""
    found: dict[int, Process] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := read(int(name))) is not None:
            found[process.pid] = process
    return found


def descendants(root: int, processes: dict[int, Process]) -> dict[int, Process]:
    """Children of `root`, their children and so on; `root` itself is not among them."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.ppid, []).append(process)
    found: dict[int, Process] = {}
    stack = [root]
    while stack:
        for child in children.get(stack.pop(), ()):
            if child.pid not in found:
                found[child.pid] = child
                stack.append(child.pid)
    return found


def marker(pid: int) -> str | None:
    """The launch that a process says it belongs to; None when it has no marker or may not be asked."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            data = file.read()
    except OSError:
        return None
    prefix = MARKER.encode() + b"="
    for entry in data.split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode(errors="replace")
    return None


def command(pid: int) -> str:
    """The command line for people, without the keys in it; `process ID` where it is not to be seen."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            data = file.read()
    except OSError:
        return f"process {pid}"
    words = data.rstrip(b"\0").decode(errors="replace").split("\0")
    return " ".join(secrets.arguments(words)) or f"process {pid}"


def same(process: Process) -> bool:
    """Whether this very process still lives."""
    now = read(process.pid)
    return now is not None and now.start == process.start and now.alive


def send(process: Process, number: int) -> bool:
    """Signal this very process, never a later one that got its id; False when it is gone or not ours to signal."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        # The handle pins whichever process has the id now, so the start time decides whether it is the one meant.
        if not same(process):
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def kill_all(processes: Iterable[Process]) -> None:
    """SIGKILL to each that still is the one meant."""
    for process in processes:
        send(process, signal.SIGKILL)


def become_subreaper() -> bool:
    """Orphaned descendants become children of this process instead of init's (Linux); False where that is not to be had."""
    return _prctl(36, 1)


def die_with_parent() -> None:
    """SIGKILL this process when the thread that forked it ends."""
    _prctl(1, int(signal.SIGKILL))


def _prctl(option: int, value: int) -> bool:
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        return int(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)) == 0
    return False
