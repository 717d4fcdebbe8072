"""What earlier runs left behind although their pytest is gone: found by marker and record, removed only when provably ours."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_ddtree.servers import proc, registry
from pytest_ddtree.servers.supervisor import HELPER_S

_PATIENCE_S = 10.0
"""What the supervisor of a dead pytest gets to finish by itself..."""
_HELPERS_S = HELPER_S + 2.0
"""... and more where it has stop commands to run: cut off, a container would be there half."""
_TERM_S = 2.0
"""What its servers get between SIGTERM and SIGKILL."""


@dataclass(slots=True)
class Leftover:
    """A run whose owner is gone: its processes that still live, and stop commands of what is no process of this host."""

    run_id: str
    owner_pid: int
    owner_alive: bool
    processes: list[proc.Process] = field(default_factory=list)
    stop_commands: list[list[str]] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    supervisor: proc.Process | None = None
    record: registry.Record | None = None

    def describe(self) -> str:
        """One text for people: run, processes, logs."""
        lines = [f"run {self.run_id} (its pytest was process {self.owner_pid})"]
        lines += [f"  process {process.pid}: {proc.command(process.pid)[:160]}" for process in self.processes]
        lines += [f"  to be stopped by: {' '.join(command)}" for command in self.stop_commands]
        lines += [f"  log: {log}" for log in self.logs]
        return "\n".join(lines)


def find(*, living_owners: bool = False) -> list[Leftover]:
    """Leftovers of runs of this user whose owner is gone (with `living_owners` those of runs that still go on, too).

    A process counts when its environment carries our marker with a run id of this pid namespace; this process's own runs never do.
    """
    found: dict[str, Leftover] = {}
    for process in proc.table().values():
        if not process.alive or process.pid == os.getpid():
            continue
        text = proc.marker(process.pid)
        if text is None:
            continue
        run_id = text.partition("/")[0]
        leftover = _leftover(found, run_id)
        if leftover is None:
            continue
        if text.endswith("/supervisor"):
            leftover.supervisor = process
        else:
            leftover.processes.append(process)
    for record in registry.records():
        leftover = _leftover(found, record.run_id)
        if leftover is None:
            continue
        leftover.record = record
        leftover.logs = [str(launch.get("log")) for launch in record.launches.values()]
        leftover.stop_commands = [
            list(command)
            for launch in record.launches.values()
            for command in launch.get("stop_commands", ())
        ]
    return [
        leftover
        for leftover in found.values()
        if (living_owners or not leftover.owner_alive)
        and (leftover.processes or leftover.stop_commands or leftover.supervisor or leftover.record)
    ]


def remove(leftovers: Sequence[Leftover]) -> list[str]:
    """Stop leftovers: their supervisor if it lives, else directly. Returns what could not be removed, in words."""
    supervised = [leftover for leftover in leftovers if leftover.supervisor is not None]
    for leftover in supervised:
        _send(leftover.supervisor, signal.SIGTERM)
    slow = any(leftover.stop_commands for leftover in supervised)
    _until_gone([leftover.supervisor for leftover in supervised], _PATIENCE_S + _HELPERS_S * slow)
    stuck: list[str] = []
    for leftover in leftovers:
        hung = leftover.supervisor is not None and proc.same(leftover.supervisor)
        if hung:
            _send(leftover.supervisor, signal.SIGKILL)
            _until_gone([leftover.supervisor], 5.0)
        if hung or leftover.supervisor is None:
            for command in leftover.stop_commands:
                try:
                    subprocess.run(
                        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
                    )
                except (OSError, subprocess.TimeoutExpired) as error:
                    stuck.append(f"{' '.join(command)}: {error}")
        remaining = [process for process in leftover.processes if proc.same(process)]
        for process in remaining:
            proc.send(process, signal.SIGTERM)
        _until_gone(remaining, _TERM_S)
        deadline = time.monotonic() + 5.0
        while remaining := [process for process in remaining if proc.same(process)]:
            if time.monotonic() > deadline:
                stuck += [
                    f"process {process.pid} ({proc.command(process.pid)[:120]})" for process in remaining
                ]
                break
            proc.kill_all(remaining)
            time.sleep(0.05)
        if leftover.record is not None and not remaining:
            leftover.record.remove()
    return stuck


def _leftover(found: dict[str, Leftover], run_id: str) -> Leftover | None:
    if run_id not in found:
        owner = registry.owner_of(run_id)
        if owner is None or owner.pid == os.getpid():
            return None
        found[run_id] = Leftover(run_id, owner.pid, owner.alive)
    return found[run_id]


def _send(process: proc.Process | None, number: int) -> None:
    if process is not None:
        proc.send(process, number)


def _until_gone(processes: Sequence[proc.Process | None], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(process and proc.same(process) for process in processes) and time.monotonic() < deadline:
        with contextlib.suppress(InterruptedError):
            time.sleep(0.05)
