"""Which launches live on this host: a small file per supervisor, so that a later run can find and name what a crash left."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pytest_ddtree.servers import proc

STATE_DIR: Final = "PYTEST_DDTREE_STATE_DIR"
"""Environment variable that moves the state folder (locks and launch records)."""


def state_dir() -> Path:
    """The folder for locks and records of this user, created on demand; raises PermissionError if somebody else's is there."""
    configured = os.environ.get(STATE_DIR)
    path = Path(configured) if configured else Path(tempfile.gettempdir()) / f"pytest-ddtree-{os.getuid()}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = path.lstat()
    if not configured and (info.st_uid != os.getuid() or not stat.S_ISDIR(info.st_mode)):
        raise PermissionError(f"{path} belongs to somebody else; set {STATE_DIR} to a folder of your own")
    return path


@dataclass(frozen=True, slots=True)
class Owner:
    """The pytest process that started a supervisor."""

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        now = proc.read(self.pid)
        return now is not None and now.start == self.start and now.alive

    def watch(self) -> int | None:
        """A descriptor that becomes readable when the process ends; None where the kernel has none or it has ended already."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return None
        if self.alive:
            return descriptor
        os.close(descriptor)
        return None


def new_run_id() -> str:
    """An id that names this process for later runs: pid, start time, pid namespace, random part."""
    me = proc.read(os.getpid())
    return f"{os.getpid()}-{me.start if me else 0}-{_namespace()}-{secrets.token_hex(4)}"


def owner_of(run_id: str) -> Owner | None:
    """The process that a run id names; None when it is none of ours or from another pid namespace, where ids mean nothing here."""
    parts = run_id.split("-")
    if len(parts) != 4 or not all(part.isdigit() for part in parts[:3]) or int(parts[2]) != _namespace():
        return None
    return Owner(int(parts[0]), int(parts[1]))


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


@dataclass(slots=True)
class Record:
    """What one supervisor has running, kept in step with its file."""

    run_id: str
    owner: Owner
    supervisor: proc.Process | None = field(default_factory=lambda: proc.read(os.getpid()))
    launches: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return state_dir() / f"run-{self.run_id}.json"

    def add(
        self, launch: str, main: proc.Process, log: str, stop_commands: list[list[str]], argv: list[str]
    ) -> None:
        """Note a server that was started."""
        self.launches[launch] = {
            "pid": main.pid,
            "start": main.start,
            "log": log,
            "stop_commands": stop_commands,
            "argv": argv,
        }
        self.save()

    def drop(self, launch: str) -> None:
        """Forget a server that has ended."""
        self.launches.pop(launch, None)
        self.save()

    def save(self) -> None:
        """Write the file in one step; a full disk must not keep a server from being stopped."""
        supervisor = self.supervisor
        data = {
            "run": self.run_id,
            "owner": [self.owner.pid, self.owner.start],
            "supervisor": [supervisor.pid, supervisor.start] if supervisor else None,
            "launches": self.launches,
        }
        with contextlib.suppress(OSError):
            temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_text(json.dumps(data))
            os.replace(temporary, self.path)

    def remove(self) -> None:
        """The supervisor ends with nothing left."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def load(path: Path) -> Record | None:
    """A record of another supervisor, None if its file is not one."""
    try:
        data = json.loads(path.read_text())
        owner = Owner(*map(int, data["owner"]))
        supervisor = data["supervisor"]
        process = proc.Process(int(supervisor[0]), int(supervisor[1]), 0, 0, "S") if supervisor else None
        return Record(str(data["run"]), owner, process, dict(data["launches"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def records() -> list[Record]:
    """All records of this user, the broken ones left out; none where there is no folder to keep them in.

    The commands in them are run, so in a folder that others may write to theirs do not count.
    """
    try:
        paths = sorted(state_dir().glob("run-*.json"))
    except OSError:
        return []
    return [record for path in paths if _is_ours(path) and (record := load(path)) is not None]


def _is_ours(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.lstat().st_uid == os.getuid()
    return False
