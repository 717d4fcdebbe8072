"""A server under the supervisor: its main process, and what belongs to it. Standard library only (the supervisor loads it)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from dataclasses import dataclass, field

from pytest_ddtree.servers import proc


@dataclass(slots=True)
class Child:
    """A server of ours: its main process, everything that was ever seen to belong to it, and how far its stop is."""

    id: str
    popen: subprocess.Popen[bytes]
    main: proc.Process
    marker: str
    stop_commands: list[list[str]]
    env: dict[str, str]
    known: dict[int, proc.Process] = field(default_factory=dict)
    """Looked for while it runs too, every few seconds."""
    code: int | None = None
    stop_began: float | None = None
    term_until: float = 0.0
    helpers_until: float = 0.0
    kill_until: float | None = None
    killed: list[int] = field(default_factory=list)
    helpers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    queue: list[list[str]] = field(default_factory=list)
    told: bool = False
    """Whether what it left was asked to end."""
    wanted: bool = False
    """Whether somebody waits for the `stopped` event."""


def members(
    child: Child, children: Collection[Child], processes: dict[int, proc.Process]
) -> list[proc.Process]:
    """Living processes of this server: descendants, its session, its marker, and whatever was one of these before."""
    ours = proc.descendants(os.getpid(), processes)
    helpers = {helper.pid for c in children for helper in c.helpers}
    # With their start times: an id may have been another's before.
    others = {(one.pid, one.start) for c in children if c is not child for one in (c.main, *c.known.values())}
    own = proc.descendants(child.main.pid, processes) if child.code is None else {}
    alone = len(children) == 1
    for process in ours.values():
        if process.pid in helpers or (process.pid, process.start) in others:
            continue
        if (
            alone
            or process.pid in own
            or process.sid == child.main.pid
            or process.pid == child.main.pid
            or proc.marker(process.pid) == child.marker
        ):
            child.known[process.pid] = process
    helper_trees = {pid for helper in helpers for pid in proc.descendants(helper, processes)}
    living = []
    for pid, known in child.known.items():
        now = processes.get(pid)
        if now is not None and now.start == known.start and now.alive and pid not in helper_trees:
            living.append(now)
    return living
