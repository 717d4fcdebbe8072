"""The process that owns the servers, so that they end with pytest however pytest ends.

It runs in a session of its own, adopts orphaned descendants (PR_SET_CHILD_SUBREAPER), and takes JSON lines from a socket. When
the socket closes, because pytest finished, crashed or was killed, every server is stopped and the supervisor ends. A byte on the
alarm pipe (written from a signal handler, or by the interpreter's signal wake-up) starts the same stop at once while pytest
still lives. Standard library only: it starts in some 20 ms and nothing of the user's environment can break it.

Requests:  {"op": "start", "id", "argv", "env", "cwd", "log", "stop_commands"}   {"op": "stop", "id", "grace_s"}   {"op": "quit"}
Events:    {"event": "started", "id", "pid", "start"}   {"event": "failed", "id", "error"}   {"event": "exit", "id", "code"}
           {"event": "stopped", "id", "code", "killed", "left", "pids", "seconds"}   {"event": "stopping", "signal"}
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from pytest_ddtree.servers import proc, registry, secrets
from pytest_ddtree.servers.child import Child, members

HURRY_GRACE_S = 4.0
"""What a server gets between SIGTERM and SIGKILL when nobody waits any more: all must be gone within ten seconds."""
STRAGGLER_S = 3.0
"""What children get between SIGTERM and SIGKILL once their server has ended."""
HELPER_S = 30.0
"""What a stop command gets: it may have to reach a container daemon or another host."""
KILL_S = 5.0
"""How long SIGKILL is repeated before what is left is reported as left."""


class Supervisor:
    """State of the supervising loop."""

    def __init__(self, control: socket.socket, alarm: int, run_id: str, owner: registry.Owner) -> None:
        self._control = control
        self._alarm = alarm
        self._children: dict[str, Child] = {}
        self._buffer = b""
        self._closing = False
        self._connected = True
        self._record = registry.Record(run_id, owner)
        control.setblocking(True)

    def run(self) -> None:
        """Serve until the owner is gone and nothing of ours is left."""
        self._record.save()
        wake_r, wake_w = os.pipe()
        os.set_blocking(wake_r, False)
        os.set_blocking(wake_w, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: None)
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGQUIT):
            signal.signal(ignored, signal.SIG_IGN)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ, "control")
            selector.register(self._alarm, selectors.EVENT_READ, "alarm")
            selector.register(wake_r, selectors.EVENT_READ, "wake")
            # A child that pytest forked may hold the socket open beyond pytest's end; the process itself is watched too.
            if (owner := self._record.owner.watch()) is not None:
                selector.register(owner, selectors.EVENT_READ, "owner")
            while not self._finished():
                for key, _ in selector.select(self._patience()):
                    if key.data == "wake":
                        if int(signal.SIGTERM) in os.read(wake_r, 4096):
                            self._close()
                    elif key.data == "alarm":
                        self._on_alarm(selector)
                    elif key.data == "owner":
                        selector.unregister(key.fileobj)
                        self._close()
                    else:
                        self._on_control(selector)
                processes = proc.table()
                self._reap(processes)
                for child in self._children.values():
                    if child.stop_began is None:
                        # What dies before anybody asks for the stop may be what holds the GPU.
                        members(child, self._children.values(), processes)
                self._advance()
        self._record.remove()

    def _finished(self) -> bool:
        return self._closing and not self._children

    def _patience(self) -> float | None:
        return 0.05 if any(child.stop_began is not None for child in self._children.values()) else 5.0

    def _on_alarm(self, selector: selectors.BaseSelector) -> None:
        data = os.read(self._alarm, 4096)
        if not data:
            selector.unregister(self._alarm)
        # The interpreter writes the number of every handled signal here; timers and child signals mean nothing to us.
        elif heard := {int(signal.SIGINT), int(signal.SIGTERM), int(signal.SIGHUP), 255} & set(data):
            self._send({"event": "stopping", "signal": heard != {255}})
            self._close()

    def _on_control(self, selector: selectors.BaseSelector) -> None:
        try:
            data = self._control.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            selector.unregister(self._control)
            self._connected = False
            self._close()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._handle(json.loads(line))

    def _handle(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "start":
                self._start(message)
            case "stop":
                child = self._children.get(message["id"])
                if child is None:
                    nothing: dict[str, Any] = {
                        "code": None,
                        "killed": [],
                        "left": [],
                        "seconds": 0.0,
                        "pids": [],
                    }
                    self._send({"event": "stopped", "id": message["id"], **nothing})
                else:
                    child.wanted = True
                    self._begin_stop(child, float(message["grace_s"]))
            case "quit":
                self._close()

    def _start(self, message: dict[str, Any]) -> None:
        launch = message["id"]
        if self._closing:
            self._send({"event": "failed", "id": launch, "error": "the supervisor is stopping"})
            return
        try:
            with open(message["log"], "ab") as log:
                popen = subprocess.Popen(
                    message["argv"],
                    env=message["env"],
                    cwd=message["cwd"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    # The supervisor has one thread, so running Python between fork and exec is safe here.
                    preexec_fn=_in_child,  # noqa: PLW1509
                )
        except (OSError, ValueError) as error:
            self._send({"event": "failed", "id": launch, "error": str(error)})
            return
        main = proc.read(popen.pid) or proc.Process(popen.pid, 0, os.getpid(), popen.pid, "Z")
        child = Child(
            launch,
            popen,
            main,
            message["env"].get(proc.MARKER, ""),
            message["stop_commands"],
            dict(message["env"]),
        )
        self._children[launch] = child
        self._record.add(
            launch, main, message["log"], message["stop_commands"], list(secrets.arguments(message["argv"]))
        )
        self._send({"event": "started", "id": launch, "pid": main.pid, "start": main.start})

    def _reap(self, processes: dict[int, proc.Process]) -> None:
        for child in self._children.values():
            if child.code is None and (code := child.popen.poll()) is not None:
                child.code = code
                self._send({"event": "exit", "id": child.id, "code": code})
            for helper in child.helpers:
                helper.poll()
        mine = {c.popen.pid for c in self._children.values()} | {
            h.pid for c in self._children.values() for h in c.helpers
        }
        for process in processes.values():
            if process.ppid == os.getpid() and not process.alive and process.pid not in mine:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)

    def _close(self) -> None:
        self._closing = True
        for child in self._children.values():
            self._begin_stop(child, HURRY_GRACE_S)

    def _begin_stop(self, child: Child, grace_s: float) -> None:
        now = time.monotonic()
        if child.stop_began is None:
            child.stop_began = now
            child.term_until = now + grace_s
            child.helpers_until = now + max(HELPER_S, grace_s)
            members(child, self._children.values(), proc.table())
            child.queue = list(child.stop_commands)
            self._help(child)
            # The parent alone: SGLang's parent takes a dead child for a crash and sleeps over it.
            if child.code is None:
                proc.send(child.main, signal.SIGTERM)
        child.term_until = min(child.term_until, now + grace_s)

    def _help(self, child: Child) -> None:
        """Run the stop commands one after the other: a container is removed after it was asked to stop."""
        while child.queue and all(helper.poll() is not None for helper in child.helpers):
            argv = child.queue.pop(0)
            try:
                helper = subprocess.Popen(
                    argv,
                    env=child.env,
                    stdin=subprocess.DEVNULL,
                    stdout=sys.stderr,
                    stderr=sys.stderr,
                    start_new_session=True,
                )
            except OSError as error:
                print(f"stop command {argv}: {error}", file=sys.stderr, flush=True)
            else:
                child.helpers.append(helper)

    def _advance(self) -> None:
        now = time.monotonic()
        for child in list(self._children.values()):
            if child.stop_began is None:
                continue
            living = members(child, self._children.values(), proc.table())
            if child.code is not None and not child.told:
                # Nobody else tells them, and now there is no parent to take their end for a crash.
                child.told = True
                child.term_until = min(child.term_until, now + STRAGGLER_S)
                for process in living:
                    proc.send(process, signal.SIGTERM)
            self._help(child)
            helping = now < child.helpers_until and any(helper.returncode is None for helper in child.helpers)
            if living and now >= child.term_until:
                if child.kill_until is None:
                    child.kill_until = now + KILL_S
                    child.killed = [process.pid for process in living]
                proc.kill_all(living)
            stuck = child.kill_until is not None and now >= child.kill_until
            if ((not living and child.code is not None) or stuck) and not helping:
                self._stopped(child, living)

    def _stopped(self, child: Child, left: list[proc.Process]) -> None:
        del self._children[child.id]
        for helper in child.helpers:
            if helper.poll() is None:
                helper.kill()
                helper.wait()
        self._record.drop(child.id)
        if child.wanted or self._closing:
            self._send(
                {
                    "event": "stopped",
                    "id": child.id,
                    "code": child.code,
                    "killed": child.killed,
                    "left": [[process.pid, proc.command(process.pid)] for process in left],
                    "pids": sorted({child.main.pid, *child.known}),
                    "seconds": round(time.monotonic() - (child.stop_began or 0.0), 3),
                }
            )

    def _send(self, message: dict[str, Any]) -> None:
        if not self._connected:
            return
        try:
            self._control.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._connected = False


def _in_child() -> None:
    proc.die_with_parent()
    # Ignored signals are inherited through exec, and a server must get its SIGINT and SIGPIPE as usual.
    for number in (
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGPIPE,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGCHLD,
    ):
        signal.signal(number, signal.SIG_DFL)


def main(argv: list[str]) -> int:
    """`control-fd alarm-fd run-id owner-pid owner-start`: supervise until the owner is gone."""
    control_fd, alarm_fd, run_id, owner_pid, owner_start = argv
    proc.become_subreaper()
    owner = registry.Owner(int(owner_pid), int(owner_start))
    Supervisor(socket.socket(fileno=int(control_fd)), int(alarm_fd), run_id, owner).run()
    return 0
