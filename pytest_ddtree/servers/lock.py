"""One run a GPU: a file lock per device that lives as long as the supervisor does."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_ddtree.servers import proc
from pytest_ddtree.servers.errors import GpuBusy, SetupRefused

LOCK_DIR: Final = "PYTEST_DDTREE_LOCK_DIR"
"""Environment variable that moves the lock folder; all users of a host must share one."""

_NEWS_S = 15.0


def lock_dir() -> Path:
    """The folder that all users of this host share, created on demand."""
    configured = os.environ.get(LOCK_DIR)
    path = Path(configured) if configured else Path(tempfile.gettempdir()) / "pytest-ddtree-locks"
    if not path.is_dir():
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            path.chmod(0o1777)
    return path


class HostLocks:
    """Locks of several names, taken in sorted order so that two runs cannot wait for each other in a circle."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        timeout_s: float,
        progress: Callable[[str], None],
    ) -> None:
        """Wait for all locks. Raises GpuBusy, which names the holder, when the time is over; SetupRefused without a folder for them."""
        self._files: list[int] = []
        deadline = time.monotonic() + timeout_s
        path: Path | None = None
        try:
            for name in sorted(set(names)):
                path = _path(name)
                self._files.append(_open(path))
                _take(self._files[-1], name, deadline, timeout_s, progress)
        except OSError as error:
            self.release()
            raise SetupRefused(
                f"the locks that keep runs on one GPU apart cannot be had: {error.filename or path}: {error.strerror}",
                hint=f"give a folder that all users of this host may write to with {LOCK_DIR}, or mend that one",
            ) from error
        except BaseException:
            self.release()
            raise

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Open files that carry the locks; a process that inherits them keeps the locks alive."""
        return tuple(self._files)

    def release(self) -> None:
        """Give up this process's share; the locks are free once every process that inherited them has ended."""
        while self._files:
            with contextlib.suppress(OSError):
                os.close(self._files.pop())


class SharedLocks:
    """Locks that several pools of one session hold together: other sessions wait for all of them, they do not wait for each other."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[HostLocks, int]] = {}

    def take(self, names: Sequence[str], *, timeout_s: float, progress: Callable[[str], None]) -> SharedHold:
        """A share of each lock, waiting only for those that no pool of this session holds yet. Raises GpuBusy."""
        wanted = sorted(set(names))
        taken: list[str] = []
        try:
            for name in wanted:
                locks, holders = self._held.get(name) or (
                    HostLocks([name], timeout_s=timeout_s, progress=progress),
                    0,
                )
                self._held[name] = (locks, holders + 1)
                taken.append(name)
        except BaseException:
            self.give_back(taken)
            raise
        return SharedHold(
            self, tuple(wanted), tuple(fd for name in wanted for fd in self._held[name][0].descriptors)
        )

    def give_back(self, names: Sequence[str]) -> None:
        """Give up one share of each; the last one frees the lock."""
        for name in names:
            locks, holders = self._held.pop(name)
            if holders > 1:
                self._held[name] = (locks, holders - 1)
            else:
                locks.release()


@dataclass(slots=True)
class SharedHold:
    """One pool's share of `SharedLocks`."""

    _locks: SharedLocks
    _names: tuple[str, ...]
    descriptors: tuple[int, ...]
    """As `HostLocks.descriptors`."""

    def release(self) -> None:
        """Give up this share. May be called twice."""
        names, self._names = self._names, ()
        self._locks.give_back(names)


def holder(name: str) -> str | None:
    """Who holds a lock now, in words; None when it is free or was never taken."""
    try:
        descriptor = os.open(_path(name), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(descriptor)
    finally:
        os.close(descriptor)
    return None


def _path(name: str) -> Path:
    return lock_dir() / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.lock"


def _take(
    descriptor: int, name: str, deadline: float, timeout_s: float, progress: Callable[[str], None]
) -> None:
    gpu = f"GPU {name.removeprefix('gpu-')}"
    last_news: float | None = None
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            now = time.monotonic()
            if now >= deadline:
                raise GpuBusy(
                    f"{gpu} is in use by another run, and was still after {timeout_s:g} s",
                    why=f"the lock {_path(name)} is held by {_holder(descriptor)}",
                    hint="wait for it, choose other GPUs, or, if its pytest is gone, `pytest-ddtree reap`",
                ) from None
            if last_news is None or now - last_news > _NEWS_S:
                progress(f"waiting for {gpu}: in use by {_holder(descriptor)}")
                last_news = now
            time.sleep(0.1)
    me = proc.read(os.getpid())
    note = {
        "pid": os.getpid(),
        "start": me.start if me else 0,
        "user": user_name(),
        "since": time.strftime("%F %T"),
        "cwd": os.getcwd(),
    }
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(note).encode(), 0)


def _open(path: Path) -> int:
    # A file of another user in a sticky folder must be opened without O_CREAT (fs.protected_regular).
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, 0o666)
    return descriptor


def _holder(descriptor: int) -> str:
    try:
        note = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {note['pid']} of {note['user']} in {note['cwd']}, since {note['since']} ({proc.command(note['pid'])[:120]})"
    except (OSError, ValueError, KeyError, TypeError):
        return "a process that left no name"


def user_name() -> str:
    """The name of the user who runs this, or the number."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())
